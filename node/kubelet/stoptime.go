package kubelet

import (
	"context"
	"math"
	"sync"
	"time"
)

// minGrace is the least time a container has between SIGTERM and SIGKILL, seconds.
const minGrace = 2

// A stopTime is when the end of a container has to be over. It can come sooner than it was to,
// at whatever step that is, never later.
//
// The steps stay in their order: the preStop hook goes on for as long as the shorter grace
// lets it, then comes SIGTERM, then SIGKILL, minGrace later at least. Upstream means to cancel
// the hook and to end the container anew with the shorter grace, which would run the hook a
// second time, but heeds a shorter grace only when the first try to end the container has
// failed (kubernetes/kubernetes#83916).
type stopTime struct {
	mu sync.Mutex
	at time.Time
	// grace is the last one that counted, seconds.
	grace int64
	// moved is closed, and another takes its place, when at is another.
	moved chan struct{}
	// stopping says that the runtime was asked to stop the container: SIGTERM.
	stopping bool
}

// seconds is a grace as a duration; none is longer than 68 years.
func seconds(grace int64) time.Duration {
	return time.Duration(min(max(grace, 0), math.MaxInt32)) * time.Second
}

func newStopTime(grace int64) *stopTime {
	return &stopTime{at: time.Now().Add(seconds(grace)), grace: grace, moved: make(chan struct{})}
}

// sooner has it come in a grace, seconds, unless it comes sooner than that, and says whether
// the runtime has to be asked once more: it has been already, and waits for longer.
func (t *stopTime) sooner(grace int64) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Now().Add(seconds(grace))
	if !at.Before(t.at) {
		return false
	}
	t.at, t.grace = at, grace
	close(t.moved)
	t.moved = make(chan struct{})
	return t.stopping
}

// stop is how many seconds are left for the runtime to stop the container.
func (t *stopTime) stop() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
	return max(int64((time.Until(t.at)+time.Second-1)/time.Second), minGrace)
}

// left is how long it is until then, of which grace, seconds, it is the end, and what is closed
// when that changes.
func (t *stopTime) left() (left time.Duration, grace int64, moved <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.at), t.grace, t.moved
}

// wait waits for a step until it is done, ctx ends or the time is over.
func (t *stopTime) wait(ctx context.Context, step <-chan struct{}) {
	for {
		left, _, moved := t.left()
		over := time.NewTimer(left)
		select {
		case <-moved:
			over.Stop()
			continue
		case <-step:
		case <-over.C:
		case <-ctx.Done():
		}
		over.Stop()
		return
	}
}
