package gateway

import (
	"cmp"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// A roster is the objects of an informer in the order of their age. It is kept change by
// change: of many thousands, sorting alone would take longer than all that one change needs.
type roster[T metav1.Object] struct {
	store cache.Store
	// keep makes a filter for the moment; nil keeps all.
	keep func() func(T) bool

	mu      sync.Mutex
	whole   bool // what is known holds but for changed
	changed map[string]bool

	have map[string]T
	list []T
}

// note says that an object has changed, which is in the store already.
func (r *roster[T]) note(o metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole {
		r.changed[cache.MetaObjectToName(o).String()] = true
	}
}

// reset says that others may be kept than before.
func (r *roster[T]) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.whole, r.changed = false, nil
}

// all are the objects. The list is not changed any more. It is for one caller at a time.
func (r *roster[T]) all() []T {
	r.mu.Lock()
	whole, changed := r.whole, r.changed
	r.whole, r.changed = true, map[string]bool{}
	r.mu.Unlock()
	if whole && len(changed) == 0 {
		return r.list
	}
	keep := func(T) bool { return true }
	if r.keep != nil {
		keep = r.keep()
	}
	const few = 8
	if !whole || len(changed) > few+len(r.list)/few { // sorting costs less then
		r.have, r.list = map[string]T{}, nil
		for _, o := range r.store.List() {
			if t := o.(T); keep(t) {
				r.have[cache.MetaObjectToName(t).String()] = t
				r.list = append(r.list, t)
			}
		}
		slices.SortFunc(r.list, older[T])
		return r.list
	}
	r.list = slices.Clone(r.list)
	for key := range changed {
		if before, had := r.have[key]; had {
			if at, there := slices.BinarySearchFunc(r.list, before, older[T]); there {
				r.list = slices.Delete(r.list, at, at+1)
			}
			delete(r.have, key)
		}
		if o, there, _ := r.store.GetByKey(key); there { // a store's only error is its index's
			if now := o.(T); keep(now) {
				at, _ := slices.BinarySearchFunc(r.list, now, older[T])
				r.have[key], r.list = now, slices.Insert(r.list, at, now)
			}
		}
	}
	return r.list
}

// older orders objects by their age, then by name.
func older[T metav1.Object](a, b T) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}
