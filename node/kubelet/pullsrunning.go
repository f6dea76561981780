package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// callOffTime is how long pulls that were called off have until the runtime has removed
	// what they had.
	callOffTime = 5 * time.Second
	// callOffAgain is how long none are called off again: where that was not enough, something
	// else takes the disk.
	callOffAgain = time.Minute
)

// errCalledOff is why a pull ended that would have had other pods evicted.
var errCalledOff = errors.New("the pull was called off, since the node is short of disk and other pods would be evicted for it")

// pullsRunning are the pulls under way.
type pullsRunning struct {
	mu        sync.Mutex
	all       map[*runningPull]struct{}
	calledOff time.Time // the last time, in vain; of the one loop that does so
}

type runningPull struct{ cancel context.CancelCauseFunc }

// begin gives a pull a context that ends when it is called off. end is called when it has ended.
func (r *pullsRunning) begin(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &runningPull{cancel}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[*runningPull]struct{}{}
	}
	r.all[p] = struct{}{}
	return ctx, func() {
		cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, p)
	}
}

// callOff ends the pulls under way, and says how many. It does not wait for them.
func (r *pullsRunning) callOff() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.all {
		p.cancel(errCalledOff)
	}
	return len(r.all)
}

// callOffPulls ends pulls before pods are evicted for what they take: a pod whose image is
// being pulled has no container yet that could be, and what was pulled goes with the pull.
// It says whether that was enough, by whether met says so within a little while.
func (k *Kubelet) callOffPulls(ctx context.Context, met func() bool) (enough bool) {
	if time.Since(k.pulls.running.calledOff) < callOffAgain {
		return false
	}
	n := k.pulls.running.callOff()
	if n == 0 {
		return false
	}
	defer func() {
		if !enough {
			k.pulls.running.calledOff = time.Now()
		}
	}()
	slog.Warn("image pulls are called off: the node is short of disk, and images that nobody uses were not enough", "pulls", n)
	for until := time.Now().Add(callOffTime); time.Now().Before(until); {
		if !met() {
			return true
		}
		if !sleep(ctx, callOffTime/25) {
			return false
		}
		k.pulls.running.callOff() // those that have waited for the places of others
	}
	return !met()
}
