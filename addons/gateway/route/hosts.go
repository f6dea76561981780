package route

import (
	"maps"
	"strings"
)

// Hosts finds what belongs to a host name: to itself, else to the longest wildcard
// that covers it, else to all names.
type Hosts[T any] struct {
	exact map[string]T
	// one are wildcards for names with one more label, many for any number of them. A
	// key is what follows the asterisk.
	one, many map[string]T
	all       []T // none or one
}

// Set says what belongs to a name, a wildcard or, with an empty name, to all.
func (h *Hosts[T]) Set(name string, singleLabel bool, value T) {
	suffix, wildcard := strings.CutPrefix(name, "*")
	switch {
	case name == "" || name == "*":
		h.all = []T{value}
	case wildcard && singleLabel:
		put(&h.one, suffix, value)
	case wildcard:
		put(&h.many, suffix, value)
	default:
		put(&h.exact, name, value)
	}
}

func put[T any](m *map[string]T, key string, value T) {
	if *m == nil {
		*m = map[string]T{}
	}
	(*m)[key] = value
}

// unset takes back what belongs to just this name.
func (h *Hosts[T]) unset(name string, singleLabel bool) {
	suffix, wildcard := strings.CutPrefix(name, "*")
	switch {
	case name == "" || name == "*":
		h.all = nil
	case wildcard && singleLabel:
		delete(h.one, suffix)
	case wildcard:
		delete(h.many, suffix)
	default:
		delete(h.exact, name)
	}
}

// clone can be changed without changing h.
func (h *Hosts[T]) clone() Hosts[T] {
	return Hosts[T]{maps.Clone(h.exact), maps.Clone(h.one), maps.Clone(h.many), h.all}
}

// Get is what belongs to just this name, as it was set.
func (h *Hosts[T]) Get(name string, singleLabel bool) (value T, ok bool) {
	suffix, wildcard := strings.CutPrefix(name, "*")
	switch {
	case name == "" || name == "*":
		if len(h.all) > 0 {
			return h.all[0], true
		}
		return value, false
	case wildcard && singleLabel:
		value, ok = h.one[suffix]
	case wildcard:
		value, ok = h.many[suffix]
	default:
		value, ok = h.exact[name]
	}
	return value, ok
}

// Find is what belongs to a host: the most specific.
func (h *Hosts[T]) Find(host string) (value T, ok bool) {
	for step := first(host); ; {
		value, step, ok = h.next(step)
		if ok || step.done {
			return value, ok
		}
	}
}

// A hostStep is how far the search for a host's names has come.
type hostStep struct {
	rest    string // of the host: from here on it is looked at next
	exact   bool   // the whole name is next
	oneNext bool   // wildcards for one label come before those for many
	done    bool
}

func first(host string) hostStep { return hostStep{rest: host, exact: true} }

// next goes through what belongs to a host from the most specific to the least, one
// lookup each time. Nothing is allocated.
func (h *Hosts[T]) next(s hostStep) (value T, after hostStep, ok bool) {
	switch {
	case s.exact:
		if len(h.exact) > 0 {
			value, ok = h.exact[s.rest]
		}
		s.exact, s.oneNext = false, true
		s.rest = shorter(s.rest)
		if len(h.one) == 0 && len(h.many) == 0 {
			s.rest = ""
		}
	case s.rest != "" && s.oneNext:
		s.oneNext = false
		value, ok = h.one[s.rest]
	case s.rest != "":
		value, ok = h.many[s.rest]
		s.rest = shorter(s.rest[1:])
	default:
		s.done = true
		if len(h.all) > 0 {
			value, ok = h.all[0], true
		}
	}
	return value, s, ok
}

// shorter is a host from its first dot on.
func shorter(host string) string {
	if i := strings.IndexByte(host, '.'); i >= 0 {
		return host[i:]
	}
	return ""
}
