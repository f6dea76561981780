package watchcache

import (
	"sync"
	"sync/atomic"
	"time"

	"knarr/internal/run"
)

const (
	// writeCost is about what one write to one watcher costs.
	writeCost = 50 * time.Microsecond
	// fewWatchers is how many watchers are served without waiting for more.
	fewWatchers = 20
	// burstSize is how many events at once tell that more will come.
	burstSize = 3
	// longestDelay bounds how long an event may wait for others.
	longestDelay = 20 * time.Millisecond
)

// A group is the log that watchers with the same scope share: everything, a
// namespace, one object, one value of the indexed field.
type group struct {
	name   string
	events []*event
	base   int64 // how many events were dropped before events[0]
	users  int

	mu           sync.Mutex
	watchers     map[*Watcher]struct{}
	lastSignal   time.Time    // when all were last
	waiting      bool         // they will be, soon
	pending      int          // events since then
	lastBatch    int          // events that were told of then
	watcherCount atomic.Int32 // how many they are
}

func newGroup(name string) *group {
	return &group{name: name, watchers: map[*Watcher]struct{}{}}
}

func (g *group) append(e *event) { g.events = append(g.events, e) }
func (g *group) end() int64      { return g.base + int64(len(g.events)) }

// drop forgets the first n events. Readers may hold the old slice.
func (g *group) drop(n int) {
	if n == 0 {
		return
	}
	g.events = append(make([]*event, 0, len(g.events)-n+keep), g.events[n:]...)
	g.base += int64(n)
}

// cut forgets everything and moves on, so that no cursor is valid any more.
func (g *group) cut() {
	g.base += int64(len(g.events)) + 1
	g.events = nil
}

// wake notifies the watchers that there are events, or will when they
// are many and were notified shortly before: what comes meanwhile goes out in one
// write to each.
func (g *group) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending++
	if g.waiting {
		return
	}
	wait := coalesceDelay(len(g.watchers), g.lastBatch) - time.Since(g.lastSignal)
	if wait <= 0 {
		g.signal()
		return
	}
	g.waiting = true
	run.AfterFunc("watch cache: wake", wait, g.wakeNow)
}

// coalesceDelay is how long after the watchers were notified of some events they are notified of
// others: once all could have been served, or twice while events come densely.
func coalesceDelay(watchers, lastBatch int) time.Duration {
	if watchers < fewWatchers {
		return 0
	}
	p := time.Duration(watchers) * writeCost
	if lastBatch >= burstSize {
		p *= 2
	}
	return min(p, longestDelay)
}

// wakeNow notifies them whatever the time.
func (g *group) wakeNow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.signal()
}

func (g *group) signal() {
	g.lastSignal, g.waiting = time.Now(), false
	g.lastBatch, g.pending = g.pending, 0
	for w := range g.watchers {
		w.signal()
	}
}

func (g *group) add(w *Watcher) {
	g.mu.Lock()
	g.watchers[w] = struct{}{}
	g.watcherCount.Store(int32(len(g.watchers)))
	g.mu.Unlock()
}

func (g *group) remove(w *Watcher) {
	g.mu.Lock()
	delete(g.watchers, w)
	g.watcherCount.Store(int32(len(g.watchers)))
	g.mu.Unlock()
}
