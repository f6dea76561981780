package cloudcontrollermanager

import (
	"context"
	"sync"
)

// notices pass on to several that instances may have changed.
type notices struct {
	mu   sync.Mutex
	to   map[int]func()
	next int
}

// follow calls changed for each notice until ctx ends.
func (n *notices) follow(ctx context.Context, changed func()) error {
	n.mu.Lock()
	if n.to == nil {
		n.to = map[int]func(){}
	}
	id := n.next
	n.next++
	n.to[id] = changed
	n.mu.Unlock()
	<-ctx.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.to, id)
	return nil
}

func (n *notices) send() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, changed := range n.to {
		changed()
	}
}
