package proxy

import (
	"net"
	"net/netip"
	"testing"

	"knarr/addons/gateway/route"
)

// URLs of tenants lead to what anyone may ask: not to pods, Services, clouds' secrets or
// the nodes' own ports, but to those of nodes at which the gateway itself listens.
func TestReach(t *testing.T) {
	r := newReach([]netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16")}, &route.Config{
		Nodes:     []netip.Addr{netip.MustParseAddr("192.0.2.7")},
		Listeners: []route.Listener{{Port: 443, PublicPort: 443}, {Port: 24005, PublicPort: 8443}},
	})
	cases := map[string]bool{
		"198.51.100.1:443": true, "198.51.100.1:10250": true, "[2001:db8::1]:443": true,
		"192.0.2.7:443": true, "192.0.2.7:8443": true, "192.0.2.7:10250": false, "[::ffff:192.0.2.7]:6443": false,
		"10.42.0.9:443": false, "10.43.0.1:443": false, "127.0.0.1:443": false, "169.254.169.254:80": false, "[fd00:ec2::254]:80": false, "100.100.100.200:80": false,
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			at, _ := netip.AddrFromSlice(n.IP)
			if !r.inside[0].Contains(at.Unmap()) && !r.inside[1].Contains(at.Unmap()) {
				cases[netip.AddrPortFrom(at.Unmap(), 10250).String()] = false
				cases[netip.AddrPortFrom(at.Unmap(), 443).String()] = true
			}
		}
	}
	for at, want := range cases {
		if err := r.may(netip.MustParseAddrPort(at)); (err == nil) != want {
			t.Errorf("%s: %v", at, err)
		}
	}
}
