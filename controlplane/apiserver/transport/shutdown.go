package transport

import (
	"context"
	"sync"
)

type shutdownKey struct{}

// UntilShutdown is ctx for a long-running request: it ends when the server wants
// to shut down, which other requests need not notice.
func UntilShutdown(ctx context.Context) (context.Context, context.CancelFunc) {
	ending, _ := ctx.Value(shutdownKey{}).(context.Context)
	if ending == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ending, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// InFlight counts the requests under way. The zero value is ready.
type InFlight struct {
	mu       sync.Mutex
	n        int
	draining bool
	empty    chan struct{} // closed when it drains and the last request has left
}

// Enter is false once it drains. A request that is counted must leave.
func (f *InFlight) Enter(counted bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return false
	}
	if counted {
		f.n++
	}
	return true
}

// Leave ends a counted request.
func (f *InFlight) Leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.draining && f.n == 0 {
		close(f.empty)
	}
}

// drain lets no request in any longer; what it returns is closed when none is
// left.
func (f *InFlight) drain() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.draining {
		f.draining, f.empty = true, make(chan struct{})
		if f.n == 0 {
			close(f.empty)
		}
	}
	return f.empty
}
