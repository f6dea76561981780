package overload

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
	// MaxProcessed is how many bytes of expensive requests are processed at once. A
	// byte of JSON becomes thirty and more of maps, sets of fields and errors, and
	// the processors are busy with few of them.
	MaxProcessed = 4 << 20
	// MaxBodies is how many bytes of expensive bodies are in memory at once: those
	// of clients that send slowly, and those that wait to be processed.
	MaxBodies = 128 << 20
	// MaxBody is what one body counts at most; what is longer is refused, or is
	// passed on to another server and not kept.
	MaxBody = 3 << 20
	// MaxQueries is how many bytes of expensive queries are parsed at once, and
	// maxWatchQueries how many watches may select by.
	MaxQueries      = 2 << 20
	maxWatchQueries = 16 << 20
)

// A MemoryLimiter bounds what all expensive requests together hold in memory.
type MemoryLimiter struct {
	processed    *semaphore.Weighted
	bodies       atomic.Int64
	queries      *semaphore.Weighted
	watchQueries atomic.Int64
	timeout      time.Duration
}

// NewMemoryLimiter returns a limiter at which requests wait for so long.
func NewMemoryLimiter(timeout time.Duration) *MemoryLimiter {
	return &MemoryLimiter{processed: semaphore.NewWeighted(MaxProcessed), queries: semaphore.NewWeighted(MaxQueries), timeout: timeout}
}

// ReserveQuery waits until an expensive query may be parsed, unless that has been
// done before. release is to be called when the request has been answered, or when
// its watch has begun.
func (m *MemoryLimiter) ReserveQuery(r *http.Request, before bool) (release func(), ok bool) {
	if !ExpensiveQuery(r) || before {
		return func() {}, true
	}
	n := min(int64(len(r.URL.RawQuery)), MaxQueries)
	if !m.queries.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(r.Context(), m.timeout)
		defer cancel()
		if m.queries.Acquire(ctx, n) != nil {
			return nil, false
		}
	}
	return sync.OnceFunc(func() { m.queries.Release(n) }), true
}

// ReserveWatch is false when there are too many watches with expensive queries.
func (m *MemoryLimiter) ReserveWatch(r *http.Request) (release func(), ok bool) {
	n := int64(len(r.URL.RawQuery))
	release = func() { m.watchQueries.Add(-n) }
	if m.watchQueries.Add(n) > maxWatchQueries {
		release()
		return nil, false
	}
	return release, true
}

// Bodies is how many bytes of expensive bodies are in memory.
func (m *MemoryLimiter) Bodies() int64 { return m.bodies.Load() }

// Idle says that nothing but watches has reserved memory.
func (m *MemoryLimiter) Idle() bool {
	if !m.processed.TryAcquire(MaxProcessed) {
		return false
	}
	defer m.processed.Release(MaxProcessed)
	if !m.queries.TryAcquire(MaxQueries) {
		return false
	}
	defer m.queries.Release(MaxQueries)
	return m.bodies.Load() == 0
}

// Reserve waits until so many bytes more may be processed, without the seat: a
// request that waits here keeps none out that needs no reservation.
func (s *Seat) Reserve(bytes int) error {
	if s.reserved > 0 {
		return nil
	}
	n := min(int64(bytes), MaxProcessed)
	if !s.limiter.processed.TryAcquire(n) {
		s.yield()
		began := time.Now()
		ctx, cancel := context.WithTimeout(s.ctx, s.limiter.timeout)
		err := s.limiter.processed.Acquire(ctx, n)
		cancel()
		s.info.Wait(time.Since(began))
		if err != nil {
			return errTooMany()
		}
	}
	s.reserved = n
	if !s.retake() {
		return errTooMany()
	}
	return nil
}

// reserveBody is false when a body of which n bytes have been read is one too many.
func (s *Seat) reserveBody(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, MaxBody-s.body)
	if s.ended || n <= 0 {
		return true
	}
	s.body += n
	return s.limiter.bodies.Add(int64(n)) <= MaxBodies
}

// release gives back the memory that the request had reserved, once it has ended.
func (s *Seat) release() {
	if s.reserved > 0 {
		s.limiter.processed.Release(s.reserved)
	}
	if s.body > 0 {
		s.limiter.bodies.Add(-int64(s.body))
	}
}

func errTooMany() error {
	return apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
}
