package dev

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// A candidates list is tried in order.
type candidates struct {
	what  string
	bits  int
	first netip.Addr
	step  int // /bits ranges from one candidate to the next
	count int
}

var (
	hostRanges    = candidates{"nodes", 24, netip.MustParseAddr("172.28.0.0"), 1, 512}
	podRanges     = candidates{"pods", 16, netip.MustParseAddr("10.42.0.0"), 2, 100}
	serviceRanges = candidates{"services", 16, netip.MustParseAddr("10.43.0.0"), 2, 100}
)

// free is the first candidate that overlaps nothing in use. Pure.
func (c candidates) free(used []netip.Prefix) (netip.Prefix, error) {
	at := c.first.As4()
	start := uint32(at[0])<<24 | uint32(at[1])<<16 | uint32(at[2])<<8 | uint32(at[3])
	for i := range c.count {
		n := start + uint32(i*c.step)<<(32-c.bits)
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), c.bits)
		if !overlaps(p, used) {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("every range for %s is in use on this host; knarr dev ls shows clusters to take down", c.what)
}

func overlaps(p netip.Prefix, used []netip.Prefix) bool {
	for _, u := range used {
		if p.Overlaps(u) {
			return true
		}
	}
	return false
}

// choose gives a new cluster its ranges, none of which is in use. Pure.
func choose(used []netip.Prefix) (hosts, pods, services netip.Prefix, err error) {
	for _, r := range []struct {
		from candidates
		to   *netip.Prefix
	}{{hostRanges, &hosts}, {podRanges, &pods}, {serviceRanges, &services}} {
		if *r.to, err = r.from.free(used); err != nil {
			return
		}
	}
	return
}

// inUse are the ranges this host has routes to or addresses in, in any table,
// and those of the other clusters.
func inUse(others []state) ([]netip.Prefix, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var used []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		if bits, _ := r.Dst.Mask.Size(); ok && bits > 0 { // the default route is in nobody's way
			used = append(used, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	for _, s := range others {
		used = append(used, s.Hosts, s.Pods, s.Services)
	}
	return used, nil
}
