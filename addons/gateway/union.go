package gateway

import (
	"maps"

	"knarr/addons/gateway/route"
)

// A union is two maps as one, which is the very same as long as they are.
type union[V any] struct{ a, b, both map[string]V }

func (u *union[V]) of(a, b map[string]V) map[string]V {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	case !route.Same(u.a, a) || !route.Same(u.b, b):
		u.a, u.b, u.both = a, b, maps.Clone(a)
		maps.Copy(u.both, b)
	}
	return u.both
}
