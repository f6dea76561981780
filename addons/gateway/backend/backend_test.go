package backend

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"knarr/addons/gateway/route"
)

// A fakeTransport counts how often it was closed.
type fakeTransport struct{ closed int }

func (f *fakeTransport) Close() error { f.closed++; return nil }

func newSet() *Set { return New("b", func(*Endpoint) io.Closer { return &fakeTransport{} }) }

func at(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
}

func endpoints(n int) (all []route.Endpoint) {
	for i := range n {
		all = append(all, route.Endpoint{Address: at(i)})
	}
	return all
}

// share is how many of 10,000 picks each endpoint gets.
func share(s *Set, w Wish) map[netip.AddrPort]int {
	got := map[netip.AddrPort]int{}
	for range 10_000 {
		if e := s.Pick(w); e != nil {
			got[e.Address]++
			e.Done()
		}
	}
	return got
}

func TestPreference(t *testing.T) {
	end, hint := route.Endpoint{Address: at(1), Terminating: true}, route.Endpoint{Address: at(2), Hinted: true}
	plain := route.Endpoint{Address: at(3)}
	for _, c := range []struct {
		list []route.Endpoint
		want []netip.AddrPort
	}{
		{nil, nil},
		{[]route.Endpoint{end}, []netip.AddrPort{at(1)}},
		{[]route.Endpoint{end, plain}, []netip.AddrPort{at(3)}},
		{[]route.Endpoint{end, plain, hint}, []netip.AddrPort{at(2)}},
		{[]route.Endpoint{plain, plain}, []netip.AddrPort{at(3)}},
	} {
		s := newSet()
		s.Put(c.list)
		got := share(s, Wish{})
		if len(got) != len(c.want) {
			t.Errorf("%v: %v, want %v", c.list, got, c.want)
		}
		for _, a := range c.want {
			if got[a] == 0 {
				t.Errorf("%v: %v, want %v", c.list, got, c.want)
			}
		}
	}
}

// TestLessBusy: who has more requests in flight gets none but by chance.
func TestLessBusy(t *testing.T) {
	s := newSet()
	s.Put(endpoints(2))
	var held []*Endpoint
	for range 100 {
		held = append(held, s.Pick(Wish{}))
	}
	of := map[netip.AddrPort]int{}
	for _, e := range held {
		of[e.Address]++
	}
	if of[at(0)] != 50 || of[at(1)] != 50 {
		t.Errorf("100 requests at once are spread as %v", of)
	}
	for _, e := range held {
		if e.Done(); e.active.Load() < 0 {
			t.Errorf("%v has %d requests", e.Address, e.active.Load())
		}
	}
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		s.Put(endpoints(4))
		all := s.now.Load().preferred
		s.Unreachable(all[0])
		if got := share(s, Wish{}); got[at(0)] != 0 || len(got) != 3 {
			t.Errorf("after a failed connection: %v", got)
		}
		for range failuresToRest {
			s.Bad(all[1])
		}
		s.Unreachable(all[2]) // half of them rest already
		if got := share(s, Wish{}); len(got) != 2 || got[at(2)] == 0 {
			t.Errorf("with half of them at rest: %v", got)
		}
		time.Sleep(restAtFirst)
		if got := share(s, Wish{}); len(got) != 4 {
			t.Errorf("after the rest: %v", got)
		}
		s.Unreachable(all[0]) // again: longer
		time.Sleep(restAtFirst)
		if got := share(s, Wish{}); got[at(0)] != 0 {
			t.Errorf("a second rest is not longer: %v", got)
		}
		time.Sleep(restAtFirst)
		all[0].Good()
		s.Unreachable(all[0])
		time.Sleep(restAtFirst)
		if got := share(s, Wish{}); got[at(0)] == 0 {
			t.Errorf("an answer does not make the next rest short: %v", got)
		}
		alone := newSet()
		alone.Put(endpoints(1))
		e := alone.Pick(Wish{})
		alone.Unreachable(e)
		if alone.Pick(Wish{Not: e}) != e {
			t.Error("the only endpoint is not tried again")
		}
	})
}

func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet()
		s.Put(endpoints(2))
		s.Put(endpoints(3))
		if n := share(s, Wish{})[at(2)]; n < 100 || n > 1000 {
			t.Errorf("of 10,000 requests one after the other the new endpoint got %d", n)
		}
		var held []*Endpoint
		of := map[netip.AddrPort]int{}
		for range 110 {
			e := s.Pick(Wish{})
			held = append(held, e)
			of[e.Address]++
		}
		if n := of[at(2)]; n == 0 || n > 25 {
			t.Errorf("the new endpoint got %d of 110 requests", n)
		}
		for _, e := range held {
			e.Done()
		}
		time.Sleep(slowStart)
		if n := share(s, Wish{})[at(2)]; n < 2500 {
			t.Errorf("after slow start it gets %d of 10,000", n)
		}
	})
}

// TestPut: endpoints that stay keep their transport and health, others are closed.
func TestPut(t *testing.T) {
	s := newSet()
	s.Put(endpoints(3))
	before := s.now.Load().byAddress
	s.Unreachable(before[at(0)])
	changed := endpoints(2)
	changed[0].Zone = "z"
	s.Put(changed)
	after := s.now.Load().byAddress
	if after[at(0)].Transport != before[at(0)].Transport || after[at(0)].restUntil.Load() == 0 || after[at(0)].Zone != "z" || after[at(1)] != before[at(1)] {
		t.Errorf("what stays: %+v", after)
	}
	if n := before[at(2)].Transport.(*fakeTransport).closed; n != 1 {
		t.Errorf("what went was closed %d times", n)
	}
	s.Close()
	if n := before[at(0)].Transport.(*fakeTransport).closed; n != 1 || s.Len() != 0 || s.Pick(Wish{Hashed: true, Session: "x"}) != nil {
		t.Errorf("at the end it was closed %d times", n)
	}
}

func TestHash(t *testing.T) {
	s := newSet()
	s.Put(endpoints(5))
	before, of := map[string]netip.AddrPort{}, map[netip.AddrPort]int{}
	for i := range 5000 {
		v := fmt.Sprint("client", i)
		e := s.Pick(Wish{Hash: Hash(v), Hashed: true})
		before[v] = e.Address
		of[e.Address]++
	}
	for a, n := range of {
		if n < 600 || n > 1500 {
			t.Errorf("%v gets %d of 5000", a, n)
		}
	}
	s.Put(endpoints(4))
	for v, a := range before {
		if e := s.Pick(Wish{Hash: Hash(v), Hashed: true}); a != at(4) && e.Address != a {
			t.Fatalf("%s moved from %v to %v though %v is still there", v, a, e.Address, a)
		}
	}
	e := s.Pick(Wish{Hash: 7, Hashed: true})
	s.Unreachable(e)
	if s.Pick(Wish{Hash: 7, Hashed: true}) == e {
		t.Error("a hash leads to an endpoint that rests")
	}
}

func TestSession(t *testing.T) {
	s := newSet()
	s.Put(endpoints(5))
	e := s.Pick(Wish{})
	e.Done()
	value := s.Session(e)
	if got := share(s, Wish{Session: value}); got[e.Address] != 10_000 {
		t.Errorf("the session's requests: %v", got)
	}
	if got := share(s, Wish{Session: "10.0.0.1:80"}); len(got) != 5 {
		t.Errorf("a session of nobody: %v", got)
	}
	list := endpoints(5)
	for i := range list {
		list[i].Terminating = list[i].Address == e.Address
	}
	s.Put(list)
	if got := share(s, Wish{Session: value}); got[e.Address] != 0 {
		t.Errorf("a session keeps its client at an endpoint that ends: %v", got)
	}
}

// TestTogether is for the race detector.
func TestTogether(t *testing.T) {
	s := newSet()
	s.Put(endpoints(3))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for k := range 2000 {
				switch {
				case i == 0 && k%10 == 0:
					s.Put(endpoints(1 + k%5))
				default:
					e := s.Pick(Wish{Hash: uint64(k), Hashed: k%3 == 0})
					if k%7 == 0 {
						s.Unreachable(e)
					}
					e.Good()
					e.Done()
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkPick(b *testing.B) {
	s := newSet()
	s.Put(endpoints(10))
	b.ReportAllocs()
	for b.Loop() {
		s.Pick(Wish{}).Done()
	}
}
