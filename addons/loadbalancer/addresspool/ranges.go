package addresspool

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Range is addresses from First to Last, of one family.
type Range struct{ First, Last netip.Addr }

// Contains reports whether a is one of them.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is6() == r.First.Is6() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// maxRanges bounds what one pool may say.
const maxRanges = 256

// Ranges are a pool's, and what is wrong with the others.
func (s Spec) Ranges() (ranges []Range, problems []string) {
	for i, text := range s.Addresses {
		if i == maxRanges {
			return ranges, append(problems, fmt.Sprintf("spec.addresses: more than %d ranges; the others are not used", maxRanges))
		}
		r, err := parse(strings.TrimSpace(text))
		if err != nil {
			problems = append(problems, fmt.Sprintf("spec.addresses[%d]: %v", i, err))
			continue
		}
		ranges = append(ranges, r)
	}
	return ranges, problems
}

func parse(text string) (r Range, err error) {
	if len(text) > 100 {
		return r, fmt.Errorf("%q… is no range", text[:20])
	}
	if first, last, ok := strings.Cut(text, "-"); ok {
		if r.First, err = netip.ParseAddr(strings.TrimSpace(first)); err == nil {
			r.Last, err = netip.ParseAddr(strings.TrimSpace(last))
		}
	} else if p, perr := netip.ParsePrefix(text); perr == nil {
		r = Range{p.Masked().Addr(), end(p)}
	} else if r.First, err = netip.ParseAddr(text); err == nil {
		r.Last = r.First
	}
	if err != nil {
		return r, fmt.Errorf("%q is no range such as 192.0.2.0/28 or 192.0.2.10-192.0.2.20", text)
	}
	r = Range{r.First.Unmap(), r.Last.Unmap()}
	switch {
	case r.First.Is6() != r.Last.Is6():
		return r, fmt.Errorf("%q has addresses of two families", text)
	case r.First.Zone() != "" || r.Last.Zone() != "":
		return r, fmt.Errorf("%q names a link", text)
	case r.Last.Less(r.First):
		return r, fmt.Errorf("%q ends before it begins", text)
	}
	for _, a := range []netip.Addr{r.First, r.Last} {
		if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
			return r, fmt.Errorf("%q has addresses that no client can ask", text)
		}
	}
	return r, nil
}

// end is the last address of a prefix.
func end(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b) // it has an address's length
	return a
}
