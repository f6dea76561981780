package route

import (
	"net/netip"
	"testing"
)

func TestReserved(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")}
	for address, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "0.0.0.0": true, "::": true, "169.254.169.254": true, "fe80::1%eth0": true, "224.0.0.1": true, "ff02::1": true,
		"fd00:ec2::254": true, "100.100.100.200": true, "::ffff:100.100.100.200": true, "168.63.129.16": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b::10.42.0.1": true,
		"10.42.3.4": true, "::ffff:10.42.3.4": true, "fd42::9": true, "10.43.0.1": false, "192.0.2.1": false, "2001:db8::1": false, "64:ff9b::192.0.2.1": false,
	} {
		if got := Reserved(netip.MustParseAddr(address), ranges); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}
