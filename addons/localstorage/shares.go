package localstorage

import (
	"context"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// share is how much of what takes long may be under way of one namespace.
const share = workers / 2

// shares are how much is under way, by namespace, and what of it waits.
type shares struct {
	mu      sync.Mutex
	busy    map[string]int
	waiting map[string]map[cache.ObjectName]bool
	add     func(cache.ObjectName) // has a key looked at; nil while nobody does
}

// feed is that of the controller whose keys wait.
func (s *shares) feed(ctx context.Context, ready func(), add func(cache.ObjectName)) error {
	s.mu.Lock()
	s.add = add
	s.mu.Unlock()
	ready()
	<-ctx.Done()
	return nil
}

// take says whether something may begin, which give then ends. Else its key is looked at
// again once something of the namespace has ended.
func (s *shares) take(namespace string, key cache.ObjectName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil {
		s.busy, s.waiting = map[string]int{}, map[string]map[cache.ObjectName]bool{}
	}
	if s.busy[namespace] < share {
		s.busy[namespace]++
		return true
	}
	if s.waiting[namespace] == nil {
		s.waiting[namespace] = map[cache.ObjectName]bool{}
	}
	s.waiting[namespace][key] = true
	return false
}

// give ends something. One that waits is looked at, or all once nothing of the namespace is
// under way any more: what was looked at may be gone, and would not look for the next.
func (s *shares) give(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[namespace]--; s.busy[namespace] == 0 {
		delete(s.busy, namespace)
	}
	for key := range s.waiting[namespace] {
		if s.add != nil {
			s.add(key)
		}
		delete(s.waiting[namespace], key)
		if s.busy[namespace] > 0 {
			break
		}
	}
	if len(s.waiting[namespace]) == 0 {
		delete(s.waiting, namespace)
	}
}
