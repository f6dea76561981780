package namespace

import (
	"sync"

	"k8s.io/client-go/tools/cache"
)

// witnesses are, by namespace, the key of a pod that was there when last looked.
// While it is, the namespace has pods, and no other need be looked at: asking the
// cache for all of them at each deletion would be quadratic.
type witnesses struct {
	mu sync.Mutex
	of map[string]string
}

// remain reports whether the cache has pods of the namespace.
func (w *witnesses) remain(pods cache.Indexer, namespace string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key, ok := w.of[namespace]; ok {
		if _, there, err := pods.GetByKey(key); err != nil || there {
			return true
		}
		delete(w.of, namespace)
	}
	left, err := pods.IndexKeys(cache.NamespaceIndex, namespace)
	if err != nil || len(left) == 0 {
		return err != nil
	}
	if w.of == nil {
		w.of = map[string]string{}
	}
	w.of[namespace] = left[len(left)/2]
	return true
}
