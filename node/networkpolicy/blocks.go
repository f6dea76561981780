package networkpolicy

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// A Range is a run of addresses of one family, the last included.
type Range struct{ First, Last netip.Addr }

// rangeOf is what a CIDR stands for.
func rangeOf(cidr string) (Range, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return Range{}, err
	}
	p = p.Masked()
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return Range{p.Addr(), end}, nil
}

// rangesOf are the addresses of one block, without those it excepts.
func rangesOf(b *networkingv1.IPBlock) ([]Range, error) {
	whole, err := rangeOf(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock.cidr: %w", err)
	}
	var except []Range
	for _, e := range b.Except {
		r, err := rangeOf(e)
		if err != nil {
			return nil, fmt.Errorf("ipBlock.except: %w", err)
		}
		except = append(except, r)
	}
	var left []Range
	at := whole.First
	for _, e := range merge(except) {
		if e.First.BitLen() != at.BitLen() || e.Last.Less(at) || whole.Last.Less(e.First) {
			continue
		}
		if at.Less(e.First) {
			left = append(left, Range{at, e.First.Prev()})
		}
		if !e.Last.Less(whole.Last) {
			return left, nil
		}
		at = e.Last.Next()
	}
	return append(left, Range{at, whole.Last}), nil
}

// merge joins ranges that overlap or touch, and puts them in order: the kernel's
// interval sets hold each address at most once.
func merge(list []Range) []Range {
	slices.SortFunc(list, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.First.BitLen(), b.First.BitLen()), bytes.Compare(a.First.AsSlice(), b.First.AsSlice()))
	})
	var all []Range
	for _, r := range list {
		if n := len(all) - 1; n >= 0 && touches(all[n], r) {
			if all[n].Last.Less(r.Last) {
				all[n].Last = r.Last
			}
			continue
		}
		all = append(all, r)
	}
	return all
}

// touches says whether r, which does not begin before a, continues it.
func touches(a, r Range) bool {
	if a.First.BitLen() != r.First.BitLen() {
		return false
	}
	next := a.Last.Next() // invalid behind the last address there is
	return !next.IsValid() || !next.Less(r.First)
}
