package shim

import (
	"reflect"
	"slices"
	"sync"

	"github.com/opencontainers/runc/libcontainer/configs"
)

// maxFilters bounds the filters that are compared with: the default ones of a node are two,
// and pods may bring others.
const maxFilters = 16

// filters are the seccomp filters of containers, the last used one first. Nearly all
// containers have the same, of 30 kB each in memory as long as they live.
type filters struct {
	mu    sync.Mutex
	known []*configs.Seccomp
}

// share puts in the place of what a container's filter refers to that of an equal one. The
// filter itself stays, since libcontainer's container refers to it; nobody changes what it
// refers to.
func (f *filters) share(filter *configs.Seccomp) {
	if filter == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.known, func(k *configs.Seccomp) bool { return reflect.DeepEqual(k, filter) })
	var equal *configs.Seccomp
	switch {
	case i >= 0:
		equal = f.known[i]
		*filter = *equal
		f.known = slices.Delete(f.known, i, i+1)
	default:
		equal = new(*filter)
	}
	f.known = slices.Insert(f.known, 0, equal)
	f.known = slices.Delete(f.known, min(len(f.known), maxFilters), len(f.known))
}
