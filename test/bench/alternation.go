package main

import (
	"context"
	"sync"
)

// alternation let both sides of a round be up at once while only one of them is
// measured: they change every few seconds, so that what slows the machine for a
// minute slows both.
type alternation struct {
	mu   sync.Mutex
	wake sync.Cond
	now  side
	left map[side]bool
}

func newAlternation(first side) *alternation {
	t := &alternation{now: first, left: map[side]bool{}}
	t.wake.L = &t.mu
	return t
}

func (s side) other() side {
	if s == knarr {
		return upstream
	}
	return knarr
}

// wait waits for the side's turn, or for the end of ctx.
func (t *alternation) wait(ctx context.Context, s side) error {
	defer context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.wake.Broadcast()
	})()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.now != s && !t.left[s.other()] && ctx.Err() == nil {
		t.wake.Wait()
	}
	return ctx.Err()
}

// pass lets the other side do its part first, unless it has left.
func (t *alternation) pass(ctx context.Context, s side) error {
	t.mu.Lock()
	t.now = s.other()
	t.wake.Broadcast()
	t.mu.Unlock()
	return t.wait(ctx, s)
}

// leave is the end of a side.
func (t *alternation) leave(s side) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now, t.left[s] = s.other(), true
	t.wake.Broadcast()
}
