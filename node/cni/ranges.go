package cni

import "net/netip"

// ranges are address ranges of which no two overlap. Adding one takes as many
// steps as it has bits, however many there are: a cluster has thousands of nodes.
type ranges struct {
	have  map[netip.Prefix]bool
	above map[netip.Prefix]bool // the ranges that hold one of have
}

func newRanges(list []netip.Prefix) *ranges {
	r := &ranges{have: map[netip.Prefix]bool{}, above: map[netip.Prefix]bool{}}
	for _, p := range list {
		r.add(p)
	}
	return r
}

// add adds p unless it overlaps one that is there, and reports whether it did.
func (r *ranges) add(p netip.Prefix) bool {
	p = p.Masked()
	if r.have[p] || r.above[p] {
		return false
	}
	for bits := range p.Bits() {
		if r.have[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return false
		}
	}
	r.have[p] = true
	for bits := range p.Bits() {
		r.above[netip.PrefixFrom(p.Addr(), bits).Masked()] = true
	}
	return true
}
