package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// siblings is how many others must be on their way for a write to wait for them.
	siblings = 16
	// patience is how soon a turn follows the one before, at the latest, however
	// many are still on their way.
	patience = 10 * time.Millisecond
)

// Turns let writes to a store of this process go together: the store writes its log
// to disk once for all of a turn, which costs as much as for one. While a turn is
// under way the next one gathers, and goes when the first write of the turn before
// has been acknowledged; it waits on while many more are on their way. A write that
// comes alone waits for nobody. The zero value is ready.
type turns struct {
	coming atomic.Int64 // writes that are prepared, wait or are under way

	mu      sync.Mutex
	turn    uint64 // the newest
	began   time.Time
	busy    bool // nothing of the newest turn has been acknowledged
	waiting int
	next    chan struct{} // closed when the next turn begins; nil when nobody waits for it
	timer   *time.Timer   // begins the next turn when patience ends; nil when nobody is waited for
}

// enter returns the turn in which the caller may go on, to be given to leave.
func (t *turns) enter(ctx context.Context) (turn uint64, err error) {
	t.mu.Lock()
	if t.next == nil {
		t.next = make(chan struct{})
	}
	t.waiting++
	turn, next := t.turn+1, t.next
	t.begin(patience)
	t.mu.Unlock()
	select {
	case <-next:
		return turn, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	begun := t.turn >= turn
	if !begun {
		t.waiting--
	}
	t.mu.Unlock()
	if begun {
		t.leave(turn)
	}
	return 0, ctx.Err()
}

// leave says that the store has answered. The first of a turn begins the next.
func (t *turns) leave(turn uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn == t.turn && t.busy {
		t.busy = false
		t.begin(patience)
	}
}

// begin lets those go who wait, unless others are worth waiting for until so long
// after the turn before.
func (t *turns) begin(patience time.Duration) {
	if t.busy || t.waiting == 0 {
		return
	}
	if t.coming.Load()-int64(t.waiting) >= siblings {
		if t.timer != nil {
			return
		}
		if left := patience - time.Since(t.began); left > 0 {
			t.timer = time.AfterFunc(left, t.late)
			return
		}
	}
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.busy, t.began, t.waiting = true, time.Now(), 0
	t.turn++
	close(t.next)
	t.next = nil
}

func (t *turns) late() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = nil
	t.begin(0)
}
