package watchcache

import (
	"sync"
	"sync/atomic"
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

func (g *group) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
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
