package gateway

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// changedServices are those that have changed since somebody has looked.
type changedServices struct {
	mu  sync.Mutex
	all map[types.NamespacedName]bool
}

func (m *changedServices) add(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[types.NamespacedName]bool{}
	}
	m.all[name] = true
}

func (m *changedServices) take() map[types.NamespacedName]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all
	m.all = nil
	return all
}
