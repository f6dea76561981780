// Package backend chooses among the endpoints of a backend: by load, health, zone, a
// property of the request or a session. It reads what it is told of endpoints and of how
// they answered, and writes nothing.
package backend

import (
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"knarr/addons/gateway/route"
)

// A Set is the endpoints of one backend. Its methods may be called at once; Pick takes no
// lock.
type Set struct {
	now atomic.Pointer[snapshot]

	name   string
	epoch  time.Time  // what times of endpoints count from
	mu     sync.Mutex // of writers
	attach func(*Endpoint) io.Closer
}

// A snapshot is the endpoints at one time, never changed.
type snapshot struct {
	// preferred are those that traffic is for: the hinted ones if there are any, without
	// those that end if there are others. The rest serves while none of them can.
	preferred, rest []*Endpoint
	byAddress       map[netip.AddrPort]*Endpoint
	ring            func() []point              // of preferred, made when a hash first asks for it
	sessions        func() map[string]*Endpoint // likewise
}

// An Endpoint is one address. It stays the same one while the address is listed.
type Endpoint struct {
	route.Endpoint
	// Transport is what attach made for it.
	Transport io.Closer

	active atomic.Int32
	// failures in a row, and until when it rests (in nanoseconds since epoch).
	failures  atomic.Int32
	restUntil atomic.Int64
	since     int64 // when it began to serve; 0 if its set began with it
}

// New is an empty set for a backend. attach makes what an endpoint's requests go through;
// it is closed when the endpoint is no longer listed.
func New(name string, attach func(*Endpoint) io.Closer) *Set {
	s := &Set{name: name, epoch: time.Now(), attach: attach}
	s.now.Store(&snapshot{})
	return s
}

// clock is the monotonic time since the epoch, never 0.
func (s *Set) clock() int64 { return int64(time.Since(s.epoch)) + 1 }

// Put replaces the list of endpoints. Those that stay keep their health and connections.
func (s *Set) Put(at []route.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.now.Load()
	next := &snapshot{byAddress: make(map[netip.AddrPort]*Endpoint, len(at))}
	var started int64
	if len(old.byAddress) > 0 {
		started = s.clock()
	}
	var hinted, serving, ending []*Endpoint
	for _, e := range at {
		if next.byAddress[e.Address] != nil {
			continue
		}
		endpoint := old.byAddress[e.Address]
		switch {
		case endpoint == nil:
			endpoint = &Endpoint{Endpoint: e, since: started}
			endpoint.Transport = s.attach(endpoint)
		case endpoint.Endpoint != e:
			endpoint = endpoint.with(e)
		}
		next.byAddress[e.Address] = endpoint
		switch {
		case e.Terminating:
			ending = append(ending, endpoint)
		case e.Hinted:
			hinted = append(hinted, endpoint)
			serving = append(serving, endpoint)
		default:
			serving = append(serving, endpoint)
		}
	}
	switch {
	case len(hinted) > 0:
		next.preferred, next.rest = hinted, without(serving, hinted)
	case len(serving) > 0:
		next.preferred = serving
	default:
		next.preferred = ending
	}
	next.ring = sync.OnceValue(func() []point { return ring(next.preferred) })
	next.sessions = sync.OnceValue(func() map[string]*Endpoint { return sessions(s.name, next.preferred, next.rest) })
	s.now.Store(next)
	for address, endpoint := range old.byAddress {
		if next.byAddress[address] == nil && endpoint.Transport != nil {
			_ = endpoint.Transport.Close()
		}
	}
}

// with is the endpoint with other properties. Requests in flight are still counted at the
// old one, which is harmless: they end.
func (e *Endpoint) with(properties route.Endpoint) *Endpoint {
	other := &Endpoint{Endpoint: properties, Transport: e.Transport, since: e.since}
	other.failures.Store(e.failures.Load())
	other.restUntil.Store(e.restUntil.Load())
	return other
}

func without(all, these []*Endpoint) (rest []*Endpoint) {
	in := make(map[*Endpoint]bool, len(these))
	for _, e := range these {
		in[e] = true
	}
	for _, e := range all {
		if !in[e] {
			rest = append(rest, e)
		}
	}
	return rest
}

// Close ends the connections to all endpoints.
func (s *Set) Close() { s.Put(nil) }

// Len is how many endpoints there are.
func (s *Set) Len() int { return len(s.now.Load().byAddress) }

// A Wish narrows the choice of an endpoint.
type Wish struct {
	// Session is the value of one, whose endpoint is taken if it is there and well.
	Session string
	// Hash spreads by a property, if Hashed.
	Hash   uint64
	Hashed bool
	// Not is an endpoint that failed just now: taken only if there is no other.
	Not *Endpoint
}

// Pick chooses an endpoint and counts a request to it in, which Done takes back. It is
// nil when there is none.
func (s *Set) Pick(w Wish) *Endpoint {
	e := s.now.Load().pick(w, s.clock())
	if e != nil {
		e.active.Add(1)
	}
	return e
}

// Done ends a request that Pick counted.
func (e *Endpoint) Done() { e.active.Add(-1) }

func (s *snapshot) pick(w Wish, at int64) *Endpoint {
	if w.Session != "" && len(s.preferred) > 0 {
		if e := s.sessions()[w.Session]; e != nil && e != w.Not && !e.resting(at) {
			return e
		}
	}
	if w.Hashed && len(s.preferred) > 0 {
		return s.hashed(w, at)
	}
	if e := lessBusy(s.preferred, w.Not, at); e != nil {
		return e
	}
	if e := lessBusy(s.rest, w.Not, at); e != nil {
		return e
	}
	// All of them rest or failed just now: a request that may fail is better than one
	// that must.
	if n := len(s.preferred); n > 0 {
		e := s.preferred[rand.IntN(n)]
		if e == w.Not && n > 1 {
			e = s.preferred[rand.IntN(n)]
		}
		return e
	}
	return nil
}

// lessBusy takes the less busy of two random endpoints that are well; nil without any.
func lessBusy(of []*Endpoint, not *Endpoint, at int64) *Endpoint {
	n := len(of)
	switch n {
	case 0:
		return nil
	case 1:
		if e := of[0]; e != not && !e.resting(at) {
			return e
		}
		return nil
	}
	i := rand.IntN(n)
	j := rand.IntN(n - 1)
	if j >= i {
		j++
	}
	a, b := of[i], of[j]
	aWell, bWell := a != not && !a.resting(at), b != not && !b.resting(at)
	switch {
	case aWell && bWell:
		aTurn, bTurn := a.turn(at), b.turn(at)
		if bTurn && !aTurn || aTurn == bTurn && b.active.Load() < a.active.Load() {
			return b
		}
		return a
	case aWell:
		return a
	case bWell:
		return b
	}
	for k := range n { // both are unwell: the next one that is not
		if e := of[(i+k)%n]; e != not && !e.resting(at) {
			return e
		}
	}
	return nil
}

// slowStart is how long a new endpoint gets less than its part, at first a tenth.
const slowStart = 10 * time.Second

// turn says whether an endpoint may have this request: a new one not always.
func (e *Endpoint) turn(at int64) bool {
	age := at - e.since
	return e.since == 0 || age >= int64(slowStart) || rand.Float64() < max(0.1, float64(age)/float64(slowStart))
}
