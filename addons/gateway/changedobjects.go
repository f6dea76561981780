package gateway

import (
	"maps"
	"sync"

	"knarr/internal/references"
)

// changedObjects are the Services, Secrets and ConfigMaps that have changed since somebody has
// looked.
type changedObjects struct {
	mu  sync.Mutex
	all map[references.Object]bool
}

func (m *changedObjects) add(o references.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[references.Object]bool{}
	}
	m.all[o] = true
}

func (m *changedObjects) take() map[references.Object]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all
	m.all = nil
	return all
}

// giveBack says that they were not looked at after all.
func (m *changedObjects) giveBack(all map[references.Object]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = all
	} else {
		maps.Copy(m.all, all)
	}
}

// concern says whether one of them does; those that do not are forgotten.
func (m *changedObjects) concern(of func(references.Object) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.all, func(o references.Object, _ bool) bool { return !of(o) })
	return len(m.all) > 0
}
