// Package nodeevents passes on the events of Nodes that matter to a controller: a
// Node's status changes far more often than what a cloud provider is asked by. It
// reads Nodes and writes nothing.
package nodeevents

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Source yields the name of a node when what matters of it has changed, and when it
// is gone. It is for one run of a controller. The cost of an event is that of matters.
func Source[S comparable](nodes cache.SharedIndexInformer, matters func(*corev1.Node) S) controller.Source[string] {
	var mu sync.Mutex
	seen := map[string]S{}
	return controller.Source[string]{Informer: nodes, Keys: func(o metav1.Object) []string {
		name := o.GetName()
		mu.Lock()
		defer mu.Unlock()
		obj, ok, err := nodes.GetIndexer().GetByKey(name)
		if err != nil || !ok {
			delete(seen, name)
			return []string{name}
		}
		now := matters(obj.(*corev1.Node))
		if before, known := seen[name]; known && before == now {
			return nil
		}
		seen[name] = now
		return []string{name}
	}}
}
