package apiserver

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"knarr/controlplane/apiserver/request"
)

const (
	// bodyPatience is how long a request keeps its seat while its body comes, and a
	// list while its client does not read.
	bodyPatience = 100 * time.Millisecond
	// listPatience is how long a list keeps its seat: one that takes longer
	// mostly waits for its client to read, drop by drop.
	listPatience = 5 * time.Second
	// gulp is the size of writes that a client may make wait.
	gulp = 16 << 10
)

// A seat is one that a request has been given by priority and fairness. It is
// given back early while only the client's own slowness is waited for: else a few
// hundred clients that send and take drop by drop keep everybody out.
type seat struct {
	ctx   context.Context
	info  *request.Info
	scale *scale
	enter func() bool
	leave func()

	worked int64 // on the scale; of the request's own goroutine

	mu          sync.Mutex
	taken, over bool
	held        int // of the body, on the scale
}

// yield gives the seat back for the time being.
func (s *seat) yield() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		s.taken = false
		s.leave()
	}
}

// retake is false when there is no seat any longer.
func (s *seat) retake() bool {
	s.mu.Lock()
	taken := s.taken
	s.mu.Unlock()
	if taken {
		return true
	}
	if !s.enter() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // answered meanwhile: a proxy reads on behind it
		s.leave()
		return true
	}
	s.taken = true
	return true
}

// end gives the seat back for good.
func (s *seat) end() {
	s.mu.Lock()
	s.over = true
	s.unload()
	s.mu.Unlock()
	s.yield()
}

// A slowBody yields its request's seat when it is long in coming, and takes one
// again once it is there.
type slowBody struct {
	io.ReadCloser
	seat  *seat
	timer *time.Timer
	dear  bool
	ended bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.timer == nil {
		b.timer = time.AfterFunc(bodyPatience, b.seat.yield)
	}
	n, err := b.ReadCloser.Read(p)
	if b.dear && n > 0 && !b.seat.hold(n) {
		return n, tooManyBytes()
	}
	if err != nil && !b.ended {
		b.ended = true
		if !b.timer.Stop() && !b.seat.retake() {
			return n, tooManyBytes()
		}
	}
	return n, err
}

// A slowAnswer yields its list's seat when a client does not take a part of it.
type slowAnswer struct {
	http.ResponseWriter
	seat  *seat
	timer *time.Timer
}

func (a *slowAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *slowAnswer) Write(p []byte) (int, error) {
	if len(p) < gulp {
		return a.ResponseWriter.Write(p)
	}
	if a.timer == nil {
		a.timer = time.AfterFunc(bodyPatience, a.seat.yield)
	} else {
		a.timer.Reset(bodyPatience)
	}
	defer a.timer.Stop()
	return a.ResponseWriter.Write(p)
}

// yielding makes a request that came with a seat give it back when its client is
// slow. What it returns is to be called when the request has been answered.
func yielding(s *seat, r *http.Request, list bool) (leave func()) {
	s.taken = true
	s.info.Scale = s
	switch {
	case r.ContentLength != 0:
		r.Body = &slowBody{ReadCloser: r.Body, seat: s, dear: dear(r)}
	case list:
		timer := time.AfterFunc(listPatience, s.yield)
		return func() {
			timer.Stop()
			s.end()
		}
	}
	return s.end
}
