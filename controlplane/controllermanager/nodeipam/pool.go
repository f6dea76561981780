package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
)

// A pool is a range cut into equal parts.
type pool struct {
	whole netip.Prefix
	bits  int // of each part
	// next is the part to try first: a range given back rests for a while.
	next uint64
	// used says how many ranges are in each part, wide which are in several.
	used map[uint64]int
	wide map[netip.Prefix]int
}

func newPool(whole netip.Prefix, bits int) (*pool, error) {
	if !whole.IsValid() || bits < whole.Bits() || bits > whole.Addr().BitLen() {
		return nil, fmt.Errorf("cluster range %s cannot be cut into parts of /%d: choose a larger range or a longer mask", whole, bits)
	}
	if bits-whole.Bits() > 32 {
		return nil, fmt.Errorf("cluster range %s has too many parts of /%d: choose a smaller range or a shorter mask", whole, bits)
	}
	return &pool{whole: whole.Masked(), bits: bits, used: map[uint64]int{}, wide: map[netip.Prefix]int{}}, nil
}

func (p *pool) size() uint64 { return 1 << (p.bits - p.whole.Bits()) }

// part is the i-th.
func (p *pool) part(i uint64) netip.Prefix {
	n := new(big.Int).SetBytes(p.whole.Addr().AsSlice())
	step := new(big.Int).Lsh(new(big.Int).SetUint64(i), uint(p.whole.Addr().BitLen()-p.bits))
	b := make([]byte, p.whole.Addr().BitLen()/8)
	n.Add(n, step).FillBytes(b)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.bits)
}

// index is the first part that overlaps q, and how many do.
func (p *pool) index(q netip.Prefix) (first, count uint64) {
	if q.Bits() <= p.whole.Bits() {
		return 0, p.size()
	}
	a, b := new(big.Int).SetBytes(q.Masked().Addr().AsSlice()), new(big.Int).SetBytes(p.whole.Addr().AsSlice())
	a.Sub(a, b).Rsh(a, uint(p.whole.Addr().BitLen()-p.bits))
	count = 1
	if q.Bits() < p.bits {
		count = 1 << (p.bits - q.Bits())
	}
	return a.Uint64(), count
}

// take notes that one more has q, or with -1 that one fewer has.
func (p *pool) take(q netip.Prefix, by int) {
	if !q.IsValid() || !q.Overlaps(p.whole) {
		return
	}
	if first, count := p.index(q); count == 1 {
		before := p.used[first]
		if p.used[first] += by; p.used[first] == 0 {
			delete(p.used, first)
		}
		p.observe(before == 0 && p.used[first] > 0, before > 0 && p.used[first] == 0)
		return
	}
	if p.wide[q] += by; p.wide[q] == 0 {
		delete(p.wide, q)
	}
}

// free is the next part that nobody has.
func (p *pool) free() (netip.Prefix, bool) {
	for tried := uint64(0); tried < p.size(); {
		i := (p.next + tried) % p.size()
		skip := uint64(0)
		if p.used[i] > 0 {
			skip = 1
		}
		for q := range p.wide {
			if first, count := p.index(q); i >= first && i < first+count {
				skip = max(skip, first+count-i)
			}
		}
		if skip == 0 {
			tries.WithLabelValues(p.whole.String()).Observe(float64(tried))
			p.next = i + 1
			return p.part(i), true
		}
		tried += skip
	}
	return netip.Prefix{}, false
}
