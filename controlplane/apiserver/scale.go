package apiserver

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// workedOn is how many bytes of dear requests are worked on at once. A byte of
	// JSON becomes thirty and more of maps, sets of fields and errors, and the
	// processors are busy with few of them.
	workedOn = 4 << 20
	// heldAtOnce is how many bytes of dear bodies are in memory at once: those of
	// clients that send slowly, and those that wait to be worked on.
	heldAtOnce = 128 << 20
	// largestHeld is what a body takes at most; what is longer is refused, or is
	// passed on to another server and not kept.
	largestHeld = 3 << 20
	// queriesRead is how many bytes of dear queries are understood at once, and
	// queriesWatched how many watches may go by.
	queriesRead    = 2 << 20
	queriesWatched = 16 << 20
)

// A scale bounds what all dear requests together hold in memory.
type scale struct {
	worked   *semaphore.Weighted
	held     atomic.Int64
	queries  *semaphore.Weighted
	watched  atomic.Int64
	patience time.Duration
}

func newScale(patience time.Duration) *scale {
	return &scale{worked: semaphore.NewWeighted(workedOn), queries: semaphore.NewWeighted(queriesRead), patience: patience}
}

// read waits until a dear query may be understood, unless it was waited for
// before. done is to be called when the request has been answered, or when its
// watch has begun.
func (s *scale) read(r *http.Request, before bool) (done func(), ok bool) {
	if len(r.URL.RawQuery) <= dearQuery || before {
		return func() {}, true
	}
	n := min(int64(len(r.URL.RawQuery)), queriesRead)
	if !s.queries.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(r.Context(), s.patience)
		defer cancel()
		if s.queries.Acquire(ctx, n) != nil {
			return nil, false
		}
	}
	return sync.OnceFunc(func() { s.queries.Release(n) }), true
}

// watch is false when there are too many watches with dear queries.
func (s *scale) watch(r *http.Request) (done func(), ok bool) {
	n := int64(len(r.URL.RawQuery))
	done = func() { s.watched.Add(-n) }
	if s.watched.Add(n) > queriesWatched {
		done()
		return nil, false
	}
	return done, true
}

// Weigh waits until so many bytes more may be worked on, without the seat: who
// waits here keeps nobody out who is not weighed.
func (s *seat) Weigh(bytes int) error {
	if s.worked > 0 {
		return nil
	}
	n := min(int64(bytes), workedOn)
	if !s.scale.worked.TryAcquire(n) {
		s.yield()
		began := time.Now()
		ctx, cancel := context.WithTimeout(s.ctx, s.scale.patience)
		err := s.scale.worked.Acquire(ctx, n)
		cancel()
		s.info.Wait(time.Since(began))
		if err != nil {
			return tooManyBytes()
		}
	}
	s.worked = n
	if !s.retake() {
		return tooManyBytes()
	}
	return nil
}

// hold is false when a body of which n bytes have been read is one too many.
func (s *seat) hold(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, largestHeld-s.held)
	if s.over || n <= 0 {
		return true
	}
	s.held += n
	return s.scale.held.Add(int64(n)) <= heldAtOnce
}

// unload takes from the scale what the request had on it, once it is over.
func (s *seat) unload() {
	if s.worked > 0 {
		s.scale.worked.Release(s.worked)
	}
	if s.held > 0 {
		s.scale.held.Add(-int64(s.held))
	}
}

func tooManyBytes() error {
	return apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
}
