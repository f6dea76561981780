package job

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// indexes are a set of completion indexes, written as "1,3-5". They are kept as spans, in
// order and apart: what somebody writes in a few bytes may be two thousand million of them.
type indexes []span

// A span is the indexes from first to last.
type span struct{ first, last int }

// parseIndexes reads those below size.
func parseIndexes(s string, size int) indexes {
	var out indexes
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		if last = min(last, size-1); first <= last {
			out = append(out, span{first, last})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	joined := out[:0]
	for _, s := range out {
		if n := len(joined); n > 0 && s.first <= joined[n-1].last+1 {
			joined[n-1].last = max(joined[n-1].last, s.last)
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// at is where the span that has i is, or would be.
func (x indexes) at(i int) int {
	n, _ := slices.BinarySearchFunc(x, i, func(s span, i int) int { return cmp.Compare(s.last, i) })
	return n
}

// last is that of the span that has i, if one does.
func (x indexes) last(i int) (int, bool) {
	if n := x.at(i); n < len(x) && x[n].first <= i {
		return x[n].last, true
	}
	return 0, false
}

func (x indexes) has(i int) bool {
	_, ok := x.last(i)
	return ok
}

// add changes x in place.
func (x *indexes) add(i int) {
	n := x.at(i)
	before := n > 0 && (*x)[n-1].last == i-1
	after := n < len(*x) && (*x)[n].first == i+1
	switch {
	case n < len(*x) && (*x)[n].first <= i:
	case before && after:
		(*x)[n-1].last = (*x)[n].last
		*x = slices.Delete(*x, n, n+1)
	case before:
		(*x)[n-1].last = i
	case after:
		(*x)[n].first = i
	default:
		*x = slices.Insert(*x, n, span{i, i})
	}
}

func (x indexes) size() (n int) {
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

// common is how many indexes are in both.
func (x indexes) common(y indexes) (n int) {
	for len(x) > 0 && len(y) > 0 {
		n += max(0, min(x[0].last, y[0].last)-max(x[0].first, y[0].first)+1)
		if x[0].last < y[0].last {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return n
}

func (x indexes) String() string {
	var parts []string
	for _, s := range x {
		switch s.last - s.first {
		case 0:
			parts = append(parts, strconv.Itoa(s.first))
		case 1:
			parts = append(parts, strconv.Itoa(s.first), strconv.Itoa(s.last))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", s.first, s.last))
		}
	}
	return strings.Join(parts, ",")
}
