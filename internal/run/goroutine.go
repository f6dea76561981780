package run

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// One process holds a whole cluster, so a panic in one goroutine must not end
// the others. Every goroutine of the product is started by this file, which
// test/arch enforces: each has a name, recovers, logs and counts.

// Go starts f. A panic in f ends f alone: it is logged with its stack and
// counted under name.
func Go(name string, f func()) {
	go func() {
		defer Recover(name)
		f()
	}()
}

// A Group is a sync.WaitGroup whose goroutines recover as those of Go do.
type Group struct{ wg sync.WaitGroup }

// Go starts f and counts it in until it returns or panics.
func (g *Group) Go(name string, f func()) {
	g.wg.Go(func() {
		defer Recover(name)
		f()
	})
}

// Loop starts f, which runs until ctx ends, and starts it again after a panic,
// with a growing delay of at most a minute. It is for the loops that a
// component cannot do without.
func (g *Group) Loop(ctx context.Context, name string, f func(context.Context)) {
	g.wg.Go(func() {
		for delay := time.Second; Panicked(name, func() { f(ctx) }); delay = min(2*delay, time.Minute) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(delay):
			}
		}
	})
}

// Wait returns once every goroutine of the group has ended.
func (g *Group) Wait() { g.wg.Wait() }

// AfterFunc is time.AfterFunc with a name and a recover.
func AfterFunc(name string, d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() {
		defer Recover(name)
		f()
	})
}

// Panicked calls f and reports whether it panicked, which it has logged and counted.
func Panicked(name string, f func()) (panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			report(name, p)
			panicked = true
		}
	}()
	f()
	return false
}

// Catch calls f and returns a panic of it, logged and counted, as an error.
func Catch(name string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			report(name, p)
			err = fmt.Errorf("%s: panic: %v", name, p)
		}
	}()
	return f()
}

// Recover, deferred, ends a panic: it is logged with its stack and counted
// under name.
func Recover(name string) {
	if p := recover(); p != nil {
		report(name, p)
	}
}

var panics struct {
	sync.Mutex
	of map[string]uint64
}

func report(name string, p any) {
	slog.Error("panic", "goroutine", name, "panic", p, "stack", string(debug.Stack()))
	CountPanic(name)
}

// CountPanic counts a panic that was recovered and logged elsewhere.
func CountPanic(name string) {
	panics.Lock()
	defer panics.Unlock()
	if panics.of == nil {
		panics.of = map[string]uint64{}
	}
	panics.of[name]++
}

// Panics is how many panics there have been since the process began, by the
// name of the goroutine.
func Panics() map[string]uint64 {
	panics.Lock()
	defer panics.Unlock()
	return maps.Clone(panics.of)
}

// OnThread calls f on an operating system thread that nothing else runs on, and
// that ends with f: what f changes of the thread (its namespaces) stays there. It is never
// the first thread, which does not end before the process, and whose namespaces others
// take for those of the process.
func OnThread(name string, f func() error) error {
	ended := make(chan error, 1)
	Go(name, func() {
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			defer runtime.UnlockOSThread()
			ended <- OnThread(name, f) // on another, while this one is held
			return
		}
		ended <- Catch(name, f) // for good: this thread is no use to others
	})
	return <-ended
}
