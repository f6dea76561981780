package ownership

// An arena is where the sets of one walk lie: a hundred small allocations less
// for a pod. It is used again for the next walk, so that nothing of it may be
// kept.
type arena struct {
	sets     slab[Set]
	children slab[child]
}

// minChildren is the room of a set's children at first.
const minChildren = 4

func (a *arena) set() *Set { return &a.sets.take(1)[0] }

// add appends to children, which lie in the arena.
func (a *arena) add(children []child, k child) []child {
	if len(children) < cap(children) {
		return append(children, k)
	}
	return append(append(a.children.take(max(minChildren, 2*cap(children)))[:0], children...), k)
}

func (a *arena) reset() {
	a.sets.reset()
	a.children.reset()
}

// A slab is memory for many values.
type slab[T any] struct {
	all  []T
	used int
}

// What a slab has at least, and what it may have to be kept.
const (
	smallSlab = 64
	largeSlab = 4096
)

// take is n zero values.
func (s *slab[T]) take(n int) []T {
	if len(s.all)-s.used < n {
		s.all, s.used = make([]T, max(n, 2*len(s.all), smallSlab)), 0
	}
	from := s.used
	s.used += n
	return s.all[from:s.used:s.used]
}

func (s *slab[T]) reset() {
	if len(s.all) > largeSlab {
		s.all = nil
	}
	clear(s.all[:min(s.used, len(s.all))])
	s.used = 0
}
