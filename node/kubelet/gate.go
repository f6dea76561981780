package kubelet

import (
	"context"
	"sync"
	"time"
)

// A gate opens once.
type gate struct {
	once sync.Once
	ch   chan struct{}
}

func newGate() *gate { return &gate{ch: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.ch) }) }

// wait returns true once the gate is open, false if ctx ended first.
func (g *gate) wait(ctx context.Context) bool {
	select {
	case <-g.ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitFor is wait for at most d; what counts is that ctx has not ended.
func (g *gate) waitFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-g.ch:
		return true
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// isOpen says whether wait would return at once.
func (g *gate) isOpen() bool {
	select {
	case <-g.ch:
		return true
	default:
		return false
	}
}
