package cni

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"knarr/internal/need"
)

// Hosts a and b share a link, and c is behind b, which routes between c and a: pairs that
// share the link of their own addresses do without the tunnel, and only these.
func TestDirectWaysOnOneLink(t *testing.T) {
	need.Root(t)
	a, b, c := newHost(t, 1, DirectVXLAN, "IPv4"), newHost(t, 2, DirectVXLAN, "IPv4"), newHost(t, 3, DirectVXLAN, "IPv4")
	join(t, a, b)
	c.config.NodeIPs = []netip.Addr{netip.MustParseAddr("198.51.100.3")}
	var err error
	in := func(h *host, do func() error) {
		t.Helper()
		if h.do(func() { err = do() }); err != nil {
			t.Fatal(err)
		}
	}
	in(b, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth1"
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsPid(c.tid)
		return errors.Join(netlink.LinkAdd(veth), addressed("eth1", "198.51.100.2/24"))
	})
	in(c, func() error {
		return errors.Join(addressed("eth0", "198.51.100.3/24"), gateway("192.0.2.0/24", "198.51.100.2"))
	})
	in(a, func() error { return gateway("198.51.100.0/24", "192.0.2.2") })
	all := map[*host]peer{a: a.peer("a"), b: b.peer("b"), c: c.peer("c")}
	apply := func() {
		t.Helper()
		for h := range all {
			var others []peer
			for other, p := range all {
				if other != h {
					others = append(others, p)
				}
			}
			in(h, func() error { return applyWays(h.config, others) })
		}
	}
	check := func(from, to *host, want string) {
		t.Helper()
		if seen, err := reaches(t, from, to); err != nil || !slices.Equal(seen, []string{want}) {
			t.Errorf("%s saw %q, %v; want %s", to.config.NodeIPs, seen, err, want)
		}
	}
	apply()
	check(a, b, "192.0.2.1")
	check(b, a, "192.0.2.2")
	check(a, c, "10.42.1.0")
	check(c, a, "10.42.3.0")
	check(b, c, "10.42.2.0") // on a link, but not that of b's own address
	check(c, b, "10.42.3.0")

	// The address of b moves off the link that it shares with a: the tunnel takes over.
	in(a, func() error {
		link, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipnet(netip.MustParsePrefix("198.51.100.2/32")), Gw: netip.MustParseAddr("192.0.2.2").AsSlice()}))
	})
	b.config.NodeIPs = []netip.Addr{netip.MustParseAddr("198.51.100.2")}
	all[b] = b.peer("b")
	apply()
	check(a, b, "10.42.1.0")
	check(b, a, "10.42.2.0")
	check(b, c, "198.51.100.2") // and with c it now shares one
	check(c, b, "198.51.100.3")
	in(a, func() error { return removeWays(a.config) })
	if got := a.held(); got != "" {
		t.Errorf("removed: %s", got)
	}
}

func addressed(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet(netip.MustParsePrefix(address))}), netlink.LinkSetUp(link))
}

func gateway(to, by string) error {
	return netlink.RouteAdd(&netlink.Route{Dst: ipnet(netip.MustParsePrefix(to)), Gw: netip.MustParseAddr(by).AsSlice()})
}

// The tunnel's and the bridge's addresses, which are of the pods' range, call nobody:
// each round would be the cause of the next.
func TestFollow(t *testing.T) {
	pods := []string{"10.42.0.0/16"}
	for address, want := range map[string]bool{"10.42.1.0/32": false, "10.42.1.1/24": false, "192.0.2.7/24": true, "2001:db8::1/64": true, "10.0.0.0/8": true} {
		updates, called := make(chan netlink.AddrUpdate, 1), false
		updates <- netlink.AddrUpdate{LinkAddress: *ipnet(netip.MustParsePrefix(address))}
		close(updates)
		if follow(t.Context(), updates, pods, func() { called = true }); called != want {
			t.Errorf("%s: called %t", address, called)
		}
	}
}

func TestSubscribe(t *testing.T) {
	need.Root(t)
	h := newHost(t, 1, DirectVXLAN, "IPv4")
	var updates chan netlink.AddrUpdate
	var stop func()
	var err error
	if h.do(func() { updates, stop, err = subscribe() }); err != nil {
		t.Fatal(err)
	}
	defer stop()
	added := make(chan error, 1)
	go h.do(func() { added <- addressed("lo", "192.0.2.7/32") })
	for u := range updates {
		if u.LinkAddress.IP.String() == "192.0.2.7" {
			break
		}
	}
	if err := <-added; err != nil {
		t.Error(err)
	}
}
