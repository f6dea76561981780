package watchcache

import (
	"context"
	"sync"
	"time"

	"knarr/internal/run"
)

// fresh asks the store for its newest revision. Readers that wait at the same
// time share one question, but never one asked before they came.
type fresh struct {
	ask     func(context.Context) (int64, error)
	mu      sync.Mutex
	next    *question
	running bool
}

type question struct {
	done     chan struct{}
	revision int64
	err      error
}

// askTimeout bounds one question. Upstream's readers wait for a minute; but a
// server that its cluster has removed could not end before its readers do.
const askTimeout = 10 * time.Second

func (f *fresh) revision(ctx context.Context) (int64, error) {
	f.mu.Lock()
	q := f.next
	if q == nil {
		q = &question{done: make(chan struct{})}
		f.next = q
		if !f.running {
			f.running = true
			run.Go("revision of the store", f.answer)
		}
	}
	f.mu.Unlock()
	select {
	case <-q.done:
		return q.revision, q.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (f *fresh) answer() {
	for {
		f.mu.Lock()
		q := f.next
		f.next = nil
		if q == nil {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		q.err = run.Catch("revision of the store", func() (err error) { // a panic must not leave readers waiting
			q.revision, err = f.ask(ctx)
			return err
		})
		cancel()
		close(q.done)
	}
}
