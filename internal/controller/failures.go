package controller

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"
)

// Failures log why keys could not be reconciled. A key that fails again and again for one
// reason is a line at first and one in each logAgain, not one for each try: one object
// that cannot be made as it says hides nothing else of the log.
type Failures[K comparable] struct {
	// Name is the controller's.
	Name string

	mu   sync.Mutex
	last map[K]failure
}

// A failure is the last one of a key that was logged.
type failure struct {
	text  uint64 // a digest: texts may be long, and tenants have some say in them
	at    time.Time
	tries int // since then
}

const (
	logAgain = 10 * time.Minute
	// maxFailures bounds the keys that are remembered; beyond it each try is a line.
	maxFailures = 10_000
)

// Log logs why a key could not be reconciled, if that is new.
func (f *Failures[K]) Log(ctx context.Context, key K, err error) {
	now, text := time.Now(), err.Error()
	sum := maphash.String(failureSeed, text)
	f.mu.Lock()
	last, known := f.last[key]
	again := known && last.text == sum && now.Sub(last.at) < logAgain
	if again {
		last.tries++
	} else {
		last.text, last.at = sum, now
	}
	tries := last.tries
	if !again {
		last.tries = 0
	}
	if known || len(f.last) < maxFailures {
		if f.last == nil {
			f.last = map[K]failure{}
		}
		f.last[key] = last
	}
	f.mu.Unlock()
	if again {
		return
	}
	args := []any{"controller", f.Name, "key", key, "err", text}
	if tries > 0 {
		args = append(args, "tries", tries+1)
	}
	slog.WarnContext(ctx, "reconcile failed, trying again", args...)
}

var failureSeed = maphash.MakeSeed()

// Forget is for a key that was reconciled.
func (f *Failures[K]) Forget(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.last, key)
}
