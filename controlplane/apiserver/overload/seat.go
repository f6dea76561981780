package overload

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"knarr/controlplane/apiserver/request"
	"knarr/internal/run"
)

const (
	// yieldAfter is how long a request keeps its seat while its body comes, and
	// while its client does not read the answer.
	yieldAfter = 100 * time.Millisecond
	// listYieldAfter is how long a list keeps its seat: one that takes longer
	// mostly waits for its client to read, drop by drop.
	listYieldAfter = 5 * time.Second
	// buffered is how much of an answer net/http holds before its client can make
	// it wait.
	buffered = 4 << 10
)

// A Seat is one seat of a priority level, which priority and fairness gave a request. The request yields it while it waits for its own client or for
// memory; else a few hundred clients that send and take drop by drop keep everybody
// out. This is a request's way:
//
//  1. It has a seat from priority and fairness: Track takes that over.
//  2. The first read of its body starts a timer of yieldAfter. When the timer fires
//     before the body is whole, the seat is given to another request.
//  3. When the body is whole, the timer is stopped. If it had fired, the request
//     waits for a seat anew, and is refused with 429 when none comes free in time.
//  4. Before expensive work, Reserve waits for memory, without the seat, and then
//     takes a seat again as in 3.
//  5. Each write of the answer beyond what net/http buffers starts the timer again.
//     A seat lost here is not taken again: the work is done, only its client is slow.
//  6. A list yields after listYieldAfter, whatever it does, for the same reason.
//  7. At the end the seat, if it is held, and all memory are given back, once.
//
// A body that is still read after the end (a proxy may do so) takes no seat: ended
// is checked after each wait.
type Seat struct {
	ctx     context.Context
	info    *request.Info
	limiter *MemoryLimiter
	enter   func() bool
	leave   func()

	reserved int64 // bytes to be processed; of the request's own goroutine

	mu           sync.Mutex
	taken, ended bool
	body         int // bytes of the body in memory
}

// NewSeat is the seat that a request has been given. enter waits for another, and
// is false when there is none; leave gives one back.
func NewSeat(ctx context.Context, info *request.Info, limiter *MemoryLimiter, enter func() bool, leave func()) *Seat {
	return &Seat{ctx: ctx, info: info, limiter: limiter, enter: enter, leave: leave, taken: true}
}

// yield gives the seat back for the time being.
func (s *Seat) yield() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		s.taken = false
		s.leave()
	}
}

// retake is false when there is no seat any longer.
func (s *Seat) retake() bool {
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
	if s.ended { // answered meanwhile: a proxy reads on behind it
		s.leave()
		return true
	}
	s.taken = true
	return true
}

// end gives the seat back for good.
func (s *Seat) end() {
	s.mu.Lock()
	s.ended = true
	s.release()
	s.mu.Unlock()
	s.yield()
}

// Track makes a request yield its seat when its client is slow. end is to be called
// when the request has been answered.
func (s *Seat) Track(r *http.Request, list bool) (end func()) {
	switch {
	case r.ContentLength != 0:
		s.info.Memory = s
		r.Body = &yieldingBody{ReadCloser: r.Body, seat: s, expensive: Expensive(r)}
	case list:
		s.info.Memory = s
		timer := run.AfterFunc("yield a seat", listYieldAfter, s.yield)
		return func() {
			timer.Stop()
			s.end()
		}
	}
	return s.end
}

// A yieldingBody yields its request's seat when it is long in coming, and takes one
// again once it is there.
type yieldingBody struct {
	io.ReadCloser
	seat      *Seat
	timer     *time.Timer
	expensive bool
	ended     bool
}

func (b *yieldingBody) Read(p []byte) (int, error) {
	if b.timer == nil {
		b.timer = run.AfterFunc("yield a seat", yieldAfter, b.seat.yield)
	}
	n, err := b.ReadCloser.Read(p)
	if b.expensive && n > 0 && !b.seat.reserveBody(n) {
		return n, errTooMany()
	}
	if err != nil && !b.ended {
		b.ended = true
		if !b.timer.Stop() && !b.seat.retake() {
			return n, errTooMany()
		}
	}
	return n, err
}

// Writer is w, with which the request yields its seat when its client does not take
// a part of the answer.
func (s *Seat) Writer(w http.ResponseWriter) http.ResponseWriter {
	return &yieldingWriter{ResponseWriter: w, seat: s}
}

type yieldingWriter struct {
	http.ResponseWriter
	seat    *Seat
	timer   *time.Timer
	written int
}

func (w *yieldingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *yieldingWriter) Write(p []byte) (int, error) {
	if w.written += len(p); w.written <= buffered {
		return w.ResponseWriter.Write(p)
	}
	if w.timer == nil {
		w.timer = run.AfterFunc("yield a seat", yieldAfter, w.seat.yield)
	} else {
		w.timer.Reset(yieldAfter)
	}
	defer w.timer.Stop()
	return w.ResponseWriter.Write(p)
}
