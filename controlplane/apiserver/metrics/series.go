package metrics

import (
	"sync"
	"sync/atomic"
)

// A series is counters by key, made when first needed. Finding one takes no
// lock; keys must be few.
type series[K comparable, V any] struct {
	mu  sync.Mutex
	all atomic.Pointer[map[K]*V]
}

// find is the counter of k, nil when there is none yet.
func (s *series[K, V]) find(k K) *V {
	if all := s.all.Load(); all != nil {
		return (*all)[k]
	}
	return nil
}

// get is the counter of k, made when there is none.
func (s *series[K, V]) get(k K, make func() *V) *V {
	if v := s.find(k); v != nil {
		return v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[K]*V{}
	if all := s.all.Load(); all != nil {
		if v := (*all)[k]; v != nil {
			return v
		}
		for k, v := range *all {
			next[k] = v
		}
	}
	v := make()
	next[k] = v
	s.all.Store(&next)
	return v
}

func (s *series[K, V]) each(do func(K, *V)) {
	if all := s.all.Load(); all != nil {
		for k, v := range *all {
			do(k, v)
		}
	}
}
