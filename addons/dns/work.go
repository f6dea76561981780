package dns

import (
	"sync"

	"knarr/internal/run"
)

// work are the goroutines of a configuration, of which no more are started once
// it is closed.
type work struct {
	mu     sync.Mutex
	closed bool
	group  run.Group
}

// Go starts f; false: it is closed.
func (w *work) Go(name string, f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.group.Go(name, f)
	return true
}

func (w *work) wait() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.group.Wait()
}
