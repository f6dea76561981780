package kubelet

import (
	"context"
	"sync"
)

// maxPulls is how many images are pulled at once where the settings set no bound, maxPullsOf how
// many of them for one namespace: who makes an image says how large its parts are, and who
// serves it how long they take. The last keptPulls are for namespaces that have none.
const maxPulls, maxPullsOf, keptPulls = 64, 16, 16

// pullSlots are those of pulls where the settings set no bound.
type pullSlots struct {
	mu      sync.Mutex
	all     int
	of      map[string]int
	changed chan struct{} // closed when one has ended; nil: nobody waits
}

// take waits for a slot of a namespace, which lasts until back is called.
func (t *pullSlots) take(ctx context.Context, namespace string) (back func(), err error) {
	for {
		changed, ok := t.try(namespace)
		if ok {
			return sync.OnceFunc(func() { t.back(namespace) }), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (t *pullSlots) try(namespace string) (changed <-chan struct{}, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.of[namespace]; t.all < maxPulls && n < maxPullsOf && (n == 0 || t.all < maxPulls-keptPulls) {
		if t.of == nil {
			t.of = map[string]int{}
		}
		t.all++
		t.of[namespace]++
		return nil, true
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed, false
}

func (t *pullSlots) back(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.of[namespace]--; t.of[namespace] == 0 {
		delete(t.of, namespace)
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}
