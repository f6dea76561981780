package backend

import (
	"sync/atomic"
	"time"
)

// Passive health: an endpoint whose answers are failures in a row rests for a while,
// longer each time. Not more than half of a set's endpoints rest at once: when most fail,
// it is not they who are ill.
const (
	failuresToRest = 5 // answers of 5xx in a row
	restAtFirst    = 2 * time.Second
	restAtMost     = 30 * time.Second
)

func (e *Endpoint) resting(at int64) bool {
	until := e.restUntil.Load()
	return until != 0 && until > at
}

// Good says that the endpoint answered.
func (e *Endpoint) Good() {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
	}
}

// Bad says that the endpoint answered with a server's failure.
func (s *Set) Bad(e *Endpoint) {
	if n := e.failures.Add(1); n >= failuresToRest {
		s.rest(e, n-failuresToRest)
	}
}

// Unreachable says that no connection to the endpoint was made, or that it ended without
// an answer.
func (s *Set) Unreachable(e *Endpoint) { s.rest(e, e.failures.Add(1)-1) }

func (s *Set) rest(e *Endpoint, times int32) {
	at := s.clock()
	current := s.now.Load()
	resting, among := 0, 0
	for _, of := range [][]*Endpoint{current.preferred, current.rest} {
		for _, other := range of {
			among++
			if other != e && other.resting(at) {
				resting++
			}
		}
	}
	if 2*(resting+1) > among {
		return
	}
	raise(&e.restUntil, at+int64(min(restAtFirst<<min(times, 10), restAtMost)))
}

func raise(v *atomic.Int64, to int64) {
	for {
		old := v.Load()
		if old >= to || v.CompareAndSwap(old, to) {
			return
		}
	}
}
