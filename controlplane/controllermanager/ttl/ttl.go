// Package ttl is the ttl-controller. It counts Nodes, and tells each in an
// annotation how many seconds its kubelet may remember Secrets and ConfigMaps:
// the longer, the more nodes there are.
package ttl

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "ttl-controller"

// steps overlap, so that a cluster at an edge does not go to and fro.
var steps = []struct{ from, to, seconds int }{
	{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, 1<<31 - 1, 300},
}

// step is the one after now for so many nodes.
func step(now, nodes int) int {
	for nodes > steps[now].to {
		now++
	}
	for nodes < steps[now].from {
		now--
	}
	return now
}

type reconciler struct {
	nodes  cache.Indexer
	client kubernetes.Interface

	mu    sync.Mutex
	now   int
	names map[string]struct{} // of the nodes there are
}

// New returns the controller; its keys are nodes.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	nodes := f.Core().V1().Nodes().Informer()
	r := &reconciler{nodes: nodes.GetIndexer(), client: client, names: map[string]struct{}{}}
	return &controller.Controller[string]{
		Name:      Name,
		Workers:   5,
		Sources:   []controller.Source[string]{{Informer: nodes, Keys: r.count}},
		Reconcile: r.reconcile,
	}
}

// count notes whether a node is there, and names it. To ask the cache for all its
// nodes would cost their number for each change of one.
func (r *reconciler) count(o metav1.Object) []string {
	_, there, err := r.nodes.GetByKey(o.GetName())
	r.mu.Lock()
	defer r.mu.Unlock()
	if there || err != nil {
		r.names[o.GetName()] = struct{}{}
	} else {
		delete(r.names, o.GetName())
	}
	return []string{o.GetName()}
}

// seconds is the value that nodes get now.
func (r *reconciler) seconds() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = step(r.now, len(r.names))
	return strconv.Itoa(steps[r.now].seconds)
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	want := r.seconds()
	obj, ok, err := r.nodes.GetByKey(name)
	if err != nil || !ok || obj.(*corev1.Node).Annotations[corev1.ObjectTTLAnnotationKey] == want {
		return 0, err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, corev1.ObjectTTLAnnotationKey, want)
	_, err = r.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return 0, err
}
