package kubeproxy

import (
	"sync"

	"k8s.io/client-go/tools/cache"
)

// pending collects Services whose rules must be looked at again. While one
// batch is written the next gathers, so that a burst costs few transactions and
// a single change waits for nothing.
type pending struct {
	mu   sync.Mutex
	keys map[cache.ObjectName]Rules
	c    chan struct{}
}

func newPending() *pending {
	return &pending{keys: map[cache.ObjectName]Rules{}, c: make(chan struct{}, 1)}
}

func (p *pending) add(key cache.ObjectName) {
	p.mu.Lock()
	p.keys[key] = Rules{}
	p.mu.Unlock()
	select {
	case p.c <- struct{}{}:
	default:
	}
}

func (p *pending) take() map[cache.ObjectName]Rules {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.keys
	p.keys = map[cache.ObjectName]Rules{}
	return keys
}
