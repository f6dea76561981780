package route

import (
	"net/netip"
	"slices"
)

// metadata is where clouds tell machines their secrets, beside the addresses of the link.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
}

// translated is the prefix by which networks of IPv6 reach addresses of IPv4.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// Plain is an address without a zone, and that of IPv4 which one of IPv6 stands for.
func Plain(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if translated.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// Reserved says that a tenant must not make a node ask an address: it is the node's own, of
// its link, of many machines, where clouds tell secrets, or in one of some ranges.
func Reserved(a netip.Addr, ranges []netip.Prefix) bool {
	a = Plain(a)
	return a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() || slices.Contains(metadata, a) ||
		slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
