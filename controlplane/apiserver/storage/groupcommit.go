package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"knarr/internal/run"
)

const (
	// manyInFlight is how many other writes must be in flight for a group to wait
	// for them.
	manyInFlight = 16
	// longestWait is how soon a group follows the one before, at the latest, however
	// many writes are still in flight.
	longestWait = 10 * time.Millisecond
)

// A groupCommit lets writes to a store of this process go together: the store syncs
// its log to disk once for all of a group, which costs as much as for one.
//
//  1. A request counts itself in flight once its body is there, long before its
//     write is ready, so that a group knows how many more writes are to come.
//  2. A write that is ready joins the next group, and waits for it to start.
//  3. When no group is under way, the next one starts at once: a write that comes
//     alone waits for none.
//  4. While a group is under way, the next one gathers.
//  5. The first acknowledged write of a group ends it: all of them were synced
//     together, and the others' answers are on their way. The next group starts.
//  6. It does not start yet if manyInFlight writes or more are about to join. Then
//     it starts when enough of those have joined, or longestWait after the start of
//     the group before, whichever comes first.
//  7. A write whose context ends while it waits is no longer counted in its group;
//     one whose group starts at that moment leaves it as if it had been answered.
//
// The zero value is ready.
type groupCommit struct {
	inFlight atomic.Int64 // writes that are prepared, wait or are under way

	mu      sync.Mutex
	group   uint64 // the newest to start
	started time.Time
	busy    bool // nothing of the newest group has been acknowledged
	waiting int
	next    chan struct{} // closed when the next group starts; nil when nothing waits for it
	timer   *time.Timer   // starts the next group after longestWait; nil when it waits for no others
}

// enter returns the group in which the caller may go on, to be given to leave.
func (g *groupCommit) enter(ctx context.Context) (group uint64, err error) {
	g.mu.Lock()
	if g.next == nil {
		g.next = make(chan struct{})
	}
	g.waiting++
	group, next := g.group+1, g.next
	g.start(longestWait)
	g.mu.Unlock()
	select {
	case <-next:
		return group, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	started := g.group >= group
	if !started {
		g.waiting--
	}
	g.mu.Unlock()
	if started {
		g.leave(group)
	}
	return 0, ctx.Err()
}

// leave says that the store has answered. The first of a group starts the next.
func (g *groupCommit) leave(group uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if group == g.group && g.busy {
		g.busy = false
		g.start(longestWait)
	}
}

// start lets those go that wait, unless others are worth waiting for until so long
// after the group before.
func (g *groupCommit) start(longest time.Duration) {
	if g.busy || g.waiting == 0 {
		return
	}
	if g.inFlight.Load()-int64(g.waiting) >= manyInFlight {
		if g.timer != nil {
			return
		}
		if left := longest - time.Since(g.started); left > 0 {
			g.timer = run.AfterFunc("store: group commit", left, g.timeout)
			return
		}
	}
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	g.busy, g.started, g.waiting = true, time.Now(), 0
	g.group++
	close(g.next)
	g.next = nil
}

func (g *groupCommit) timeout() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = nil
	g.start(0)
}
