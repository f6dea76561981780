package kubeproxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func TestPlace(t *testing.T) {
	named := func(s string) (eps []netip.AddrPort) {
		for _, r := range s {
			eps = append(eps, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r)}), 80))
		}
		return eps
	}
	for _, c := range []struct{ was, want, slots string }{
		{"", "abc", "abc"},
		{"abc", "abc", "abc"},
		{"abc", "", ""},
		{"abcd", "bcd", "dbc"}, // the last moves into the gap
		{"abcd", "abc", "abc"}, // the last goes
		{"abcd", "cd", "dc"},
		{"abc", "abcd", "abcd"},
		{"cba", "abcx", "cbax"},  // who is there stays
		{"abc", "bcx", "xbc"},    // a newcomer fills the gap
		{"abcd", "efgh", "efgh"}, // all change
		{"abcdef", "fx", "xf"},
	} {
		if got := place(named(c.was), named(c.want)); !slices.Equal(got, named(c.slots)) {
			t.Errorf("%q to %q: %v, want %q", c.was, c.want, got, c.slots)
		}
	}
}

// However they come and go, the slots hold those wanted, each once, and no more
// of them change than endpoints come or go, and move.
func TestPlaceAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var slots []netip.AddrPort
	for range 5000 {
		var want []netip.AddrPort
		for i := range byte(12) {
			if random.IntN(3) > 0 {
				want = append(want, netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", i)))
			}
		}
		was := slots
		slots = place(was, want)
		if got := ordered(slices.Clone(slots)); !slices.Equal(got, want) {
			t.Fatalf("%v to %v: %v", was, want, slots)
		}
		differ, stay := 0, 0
		for i, ep := range slots {
			if i < len(was) && was[i] != ep {
				differ++
			}
			if slices.Contains(was, ep) {
				stay++
			}
		}
		if gone := len(was) - stay; differ > gone {
			t.Fatalf("%v to %v: %v: %d slots differ, and %d endpoints have gone", was, want, slots, differ, gone)
		}
	}
}
