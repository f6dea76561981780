package watchcache

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// turn is about what one write to one watcher costs.
	turn = 50 * time.Microsecond
	// alone is how many watchers are served without waiting for more.
	alone = 20
	// dense is how many events at once tell that more will come.
	dense = 3
	// longestGather bounds how long an event may wait for others.
	longestGather = 20 * time.Millisecond
)

// A group is the log that watchers with the same scope share: everything, a
// namespace, one object, one value of the indexed field.
type group struct {
	name   string
	events []*event
	base   int64 // how many events were dropped before events[0]
	users  int

	mu       sync.Mutex
	watchers map[*Watcher]struct{}
	woken    time.Time    // when all were last
	waiting  bool         // they will be, soon
	gathered int          // events since then
	carried  int          // events that were told of then
	crowd    atomic.Int32 // how many they are
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

// wake tells the watchers that there is something, or that it will when they
// are many and were told shortly before: what comes meanwhile goes out in one
// write to each.
func (g *group) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gathered++
	if g.waiting {
		return
	}
	wait := pause(len(g.watchers), g.carried) - time.Since(g.woken)
	if wait <= 0 {
		g.signal()
		return
	}
	g.waiting = true
	time.AfterFunc(wait, g.wakeNow)
}

// pause is how long after the watchers were told of some events they are told of
// others: once all could have been served, or twice while events come densely.
func pause(watchers, carried int) time.Duration {
	if watchers < alone {
		return 0
	}
	p := time.Duration(watchers) * turn
	if carried >= dense {
		p *= 2
	}
	return min(p, longestGather)
}

// wakeNow tells them whatever the time.
func (g *group) wakeNow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.signal()
}

func (g *group) signal() {
	g.woken, g.waiting = time.Now(), false
	g.carried, g.gathered = g.gathered, 0
	for w := range g.watchers {
		w.signal()
	}
}

func (g *group) add(w *Watcher) {
	g.mu.Lock()
	g.watchers[w] = struct{}{}
	g.crowd.Store(int32(len(g.watchers)))
	g.mu.Unlock()
}

func (g *group) remove(w *Watcher) {
	g.mu.Lock()
	delete(g.watchers, w)
	g.crowd.Store(int32(len(g.watchers)))
	g.mu.Unlock()
}
