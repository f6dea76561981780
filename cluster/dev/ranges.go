package dev

import (
	"fmt"
	"math/big"
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

// The ranges of nodes, pods and Services, of each family.
var (
	ranges4 = []candidates{
		{"nodes", 24, netip.MustParseAddr("172.28.0.0"), 1, 512},
		{"pods", 16, netip.MustParseAddr("10.42.0.0"), 2, 100},
		{"services", 16, netip.MustParseAddr("10.43.0.0"), 2, 100},
	}
	ranges6 = []candidates{
		{"nodes", 64, netip.MustParseAddr("fd00:28::"), 1, 512},
		{"pods", 56, netip.MustParseAddr("fd00:42::"), 1, 100},
		{"services", 112, netip.MustParseAddr("fd00:43::"), 1, 100},
	}
)

// free is the first candidate that overlaps nothing in use. Pure.
func (c candidates) free(used []netip.Prefix) (netip.Prefix, error) {
	at := new(big.Int).SetBytes(c.first.AsSlice())
	step := new(big.Int).Lsh(big.NewInt(int64(c.step)), uint(c.first.BitLen()-c.bits))
	for range c.count {
		a, _ := netip.AddrFromSlice(at.FillBytes(c.first.AsSlice()))
		at.Add(at, step)
		p := netip.PrefixFrom(a, c.bits)
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

// choose gives a new cluster its ranges of a family, none of which is in use. Pure.
func choose(from []candidates, used []netip.Prefix) (f family, err error) {
	for i, to := range []*netip.Prefix{&f.Hosts, &f.Pods, &f.Services} {
		if *to, err = from[i].free(used); err != nil {
			return f, err
		}
	}
	return f, nil
}

// The families of a cluster, as kind names them.
const ipv4, ipv6, dual = "ipv4", "ipv6", "dual"

// IPFamilies are what Options.IPFamily takes.
var IPFamilies = []string{ipv4, ipv6, dual}

// chooseAll gives a new cluster its ranges. Pure.
func (s *state) chooseAll(ipFamily string, used []netip.Prefix) (err error) {
	first := ranges4
	if ipFamily == ipv6 {
		first = ranges6
	}
	if s.family, err = choose(first, used); err != nil || ipFamily != dual {
		return err
	}
	s.Second = new(family)
	*s.Second, err = choose(ranges6, used)
	return err
}

// ipFamily is what the ranges were chosen by.
func (s state) ipFamily() string {
	switch {
	case s.Second != nil:
		return dual
	case s.v6():
		return ipv6
	}
	return ipv4
}

// inUse are the ranges this host has routes to or addresses in, in any table,
// and those of the other clusters.
func inUse(others []state) ([]netip.Prefix, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
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
		for _, f := range s.families() {
			used = append(used, f.Hosts, f.Pods, f.Services)
		}
	}
	return used, nil
}
