package gateway

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// gather is how long a change waits for others, so that a burst of them is one compilation.
	gather = 3 * time.Millisecond
	// gatherStatus is the same on the server: nodes serve a change first, then it is said of it
	// that they do.
	gatherStatus = 50 * time.Millisecond
	// restFactor is how many times as long as its processor time a compilation is rested from:
	// whoever makes compilations long makes them rare, and changes of endpoints, which need none, are
	// told meanwhile.
	restFactor = 5
	// maxOwed is how much rest may be owed before anything waits, so that a few changes one after
	// the other are served at once, and maxRest the longest that one waits.
	maxOwed, maxRest = time.Second, time.Second
)

// A pace keeps what compilations take of a processor to a part of it.
type pace struct {
	rested time.Time // when the rest from all of them will be over
}

// wait is how long the next compilation is to wait; 0 if it may begin.
func (p *pace) wait(now time.Time) time.Duration { return max(p.rested.Sub(now.Add(maxOwed)), 0) }

// processorTime is what do takes of a processor: what it waits for, one among others, does not
// count.
func processorTime(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // it fails for bad arguments alone
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	do()
	return used() - began
}

// took notes how much processor time one took that has ended now.
func (p *pace) took(d time.Duration, now time.Time) {
	owed := max(p.rested.Sub(now.Add(-d)), 0) + restFactor*d // the time that it took was no rest
	p.rested = now.Add(min(owed, maxOwed+maxRest))
}
