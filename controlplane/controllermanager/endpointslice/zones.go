package endpointslice

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
)

// zones are those of the nodes as last seen. A node that comes after its pods, or
// is labelled later, changes the endpoints of all pods it has; most changes of a
// node are not of that kind.
type zones struct {
	mu sync.Mutex
	of map[string]string
}

// moved reports whether the node is in another zone than before.
func (z *zones) moved(node, zone string, there bool) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	was := z.of[node]
	if !there {
		delete(z.of, node) // its pods go too
		return false
	}
	z.of[node] = zone
	return was != zone
}

// relocated names the Services behind which the pods of a node are, if its zone is
// another one now. behind names those of a pod.
func (r *reconciler) relocated(behind func(metav1.Object) []cache.ObjectName) func(metav1.Object) []cache.ObjectName {
	return func(o metav1.Object) (keys []cache.ObjectName) {
		_, there, err := r.nodes.GetByKey(o.GetName())
		if err != nil || !r.zones.moved(o.GetName(), r.zone(o.GetName()), there) {
			return nil
		}
		list, err := pods.OnNode(r.pods, o.GetName())
		if err != nil {
			return nil
		}
		for _, p := range list {
			keys = append(keys, behind(p)...)
		}
		return keys
	}
}

// zone is where a node is.
func (r *reconciler) zone(node string) string {
	obj, ok, err := r.nodes.GetByKey(node)
	if err != nil || !ok {
		return ""
	}
	return obj.(*corev1.Node).Labels[corev1.LabelTopologyZone]
}
