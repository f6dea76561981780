package ingress

import (
	"maps"
	"reflect"

	"knarr/addons/gateway/route"
)

// Made is a backend that something is led to, and where its endpoints are found.
type Made struct {
	Key    string
	As     route.Backend
	Target Target
}

// Shared are the backends of many, some of which have the same ones. Its maps are not changed
// once they are there: Apply replaces them if there is a difference.
type Shared struct {
	Backends map[string]route.Backend
	Targets  map[string]Target

	refs    map[string]int
	changes map[string]*Made // nil: nobody has it any more
}

// NewShared is empty.
func NewShared() *Shared {
	return &Shared{Backends: map[string]route.Backend{}, Targets: map[string]Target{}, refs: map[string]int{}, changes: map[string]*Made{}}
}

// Remove notes that somebody has these no more.
func (s *Shared) Remove(all []Made) {
	for i := range all {
		key := all[i].Key
		if s.refs[key]--; s.refs[key] == 0 {
			delete(s.refs, key)
			s.changes[key] = nil
		}
	}
}

// Add notes that somebody has these.
func (s *Shared) Add(all []Made) {
	for i := range all {
		m := &all[i]
		s.refs[m.Key]++
		s.changes[m.Key] = m
	}
}

// Apply makes the maps what was noted.
func (s *Shared) Apply() {
	for key, m := range s.changes {
		as, there := s.Backends[key]
		if m == nil && !there || m != nil && there && s.Targets[key] == m.Target && reflect.DeepEqual(as, m.As) {
			delete(s.changes, key)
		}
	}
	if len(s.changes) == 0 {
		return
	}
	s.Backends, s.Targets = maps.Clone(s.Backends), maps.Clone(s.Targets)
	for key, m := range s.changes {
		if m == nil {
			delete(s.Backends, key)
			delete(s.Targets, key)
		} else {
			s.Backends[key], s.Targets[key] = m.As, m.Target
		}
	}
	clear(s.changes)
}
