// Package nodelifecycle is the node-lifecycle-controller. It reads Nodes, their
// Leases and Pods; it writes conditions of nodes that fell silent, taints that
// follow conditions, and the readiness of pods on nodes that are not ready.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "node-lifecycle-controller"

type reconciler struct {
	nodes, leases, pods cache.Indexer
	client, manager     kubernetes.Interface
	events              record.EventRecorder
	cfg                 Config

	mu    sync.Mutex
	beats map[string]beat // by node
	count *tally
}

// A beat is the last sign of life of a node, and when it was seen by this
// clock: the node's own may be wrong.
type beat struct {
	uid            types.UID
	lease, status  time.Time
	seen           time.Time
	ready          corev1.ConditionStatus
	notReadyMarked bool
}

// New returns the controller. Its account, client, may not read Leases: the manager may.
func New(f informers.SharedInformerFactory, client, manager kubernetes.Interface, events record.EventRecorder, cfg Config) (*controller.Controller[string], error) {
	nodes, leases, podInformer := f.Core().V1().Nodes().Informer(), f.Coordination().V1().Leases().Informer(), f.Core().V1().Pods().Informer()
	if err := pods.IndexByNode(podInformer); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	r := &reconciler{
		nodes: nodes.GetIndexer(), leases: leases.GetIndexer(), pods: podInformer.GetIndexer(), client: client, manager: manager, events: events, cfg: cfg,
		beats: map[string]beat{}, count: newTally(cfg),
	}
	return &controller.Controller[string]{
		Name:       Name,
		Workers:    8,
		RetryDelay: [2]time.Duration{0, 5 * time.Second}, // upstream looks at every node as often
		Sources: []controller.Source[string]{
			{Informer: nodes, Keys: func(o metav1.Object) []string { r.recount(o.GetName()); return []string{o.GetName()} }},
			{Informer: leases, Keys: func(o metav1.Object) []string {
				if o.GetNamespace() != corev1.NamespaceNodeLease {
					return nil
				}
				return []string{o.GetName()}
			}},
			{Informer: podInformer},
		},
		Reconcile: r.reconcile,
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.nodes.GetByKey(name)
	if err != nil {
		return 0, err
	}
	if !ok {
		r.mu.Lock()
		gone, known := r.beats[name]
		delete(r.beats, name)
		r.mu.Unlock()
		if known {
			r.events.Eventf(reference(name, gone.uid), corev1.EventTypeNormal, "RemovingNode", "Node %s event: Removing Node %s from Controller", name, name)
		}
		return 0, nil
	}
	node, now := obj.(*corev1.Node), time.Now()
	defer func() { lookTook.Observe(time.Since(now).Seconds()) }()
	cached, _, err := r.leases.GetByKey(corev1.NamespaceNodeLease + "/" + name)
	if err != nil {
		return 0, err
	}
	renewed, _ := cached.(*coordinationv1.Lease)
	b := r.listen(node, renewed, now)
	if now.Sub(b.seen) >= r.allowed(node) {
		if node, b, err = r.silent(ctx, node, b, now); err != nil {
			return 0, ignoreNotFound(err)
		}
	}
	ready := readiness(node)
	// A pod that cannot be marked keeps neither the others nor the node from what befits them.
	unmarked := r.markTransition(ctx, node, b, ready)
	taints := plan(node, ready, r.mayEvict(node, ready, now), now)
	if !apiequality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		if err := r.taint(ctx, node, taints); err != nil {
			return 0, errors.Join(unmarked, ignoreNotFound(err))
		}
	}
	if unmarked != nil {
		return 0, unmarked
	}
	if ready != corev1.ConditionTrue {
		return r.cfg.MonitorPeriod, nil // what befits it depends on the others
	}
	return max(time.Millisecond, r.allowed(node)-now.Sub(b.seen)), nil
}

// silent makes the conditions of a node unknown of which the cache has heard nothing for too
// long. The cache is as old as its watch has stood still, so the server has the last word.
func (r *reconciler) silent(ctx context.Context, node *corev1.Node, b beat, now time.Time) (*corev1.Node, beat, error) {
	next := node.DeepCopy()
	if !markUnknown(next, now) {
		return node, b, nil
	}
	renewed, err := r.lease(ctx, node.Name)
	if err != nil {
		return nil, b, err
	}
	if b = r.listen(node, renewed, now); now.Sub(b.seen) < r.allowed(node) {
		return node, b, nil
	}
	node, err = r.client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return node, b, err
}

// lease is the node's as the server has it now, nil without one.
func (r *reconciler) lease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	found, err := r.manager.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil || len(found.Items) == 0 {
		return nil, err
	}
	return &found.Items[0], nil
}

// listen notes the node's latest sign of life. The lease is nil where there is none.
func (r *reconciler) listen(node *corev1.Node, lease *coordinationv1.Lease, now time.Time) beat {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, known := r.beats[node.Name]
	if !known || b.uid != node.UID {
		if !known {
			r.events.Eventf(reference(node.Name, node.UID), corev1.EventTypeNormal, "RegisteredNode", "Node %s event: Registered Node %s in Controller", node.Name, node.Name)
		}
		b = beat{uid: node.UID, seen: now, ready: readiness(node)}
		if c := condition(node, corev1.NodeReady); c == nil {
			b.seen = node.CreationTimestamp.Time
		}
	}
	if lease != nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(b.lease) {
		if known {
			b.seen = now
		}
		b.lease = lease.Spec.RenewTime.Time
	}
	if c := condition(node, corev1.NodeReady); c != nil && c.LastHeartbeatTime.After(b.status) {
		if known {
			b.seen = now
		}
		b.status = c.LastHeartbeatTime.Time
	}
	r.beats[node.Name] = b
	return b
}

func (r *reconciler) allowed(node *corev1.Node) time.Duration {
	if condition(node, corev1.NodeReady) == nil {
		return r.cfg.StartupGracePeriod
	}
	return r.cfg.MonitorGracePeriod
}

// markTransition records when a node stops being ready, and marks its pods.
func (r *reconciler) markTransition(ctx context.Context, node *corev1.Node, b beat, ready corev1.ConditionStatus) error {
	switch {
	case ready == corev1.ConditionTrue:
		b.notReadyMarked = false
	case b.notReadyMarked, condition(node, corev1.NodeReady) == nil: // nothing was ever said of it
	default:
		if b.ready == corev1.ConditionTrue {
			r.events.Eventf(reference(node.Name, node.UID), corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: %s", node.Name, "NodeNotReady")
		}
		marked, err := r.markPods(ctx, node)
		if err != nil {
			return err
		}
		b.notReadyMarked = marked
	}
	b.ready = ready
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beats[node.Name] = b
	return nil
}

// markPods makes the pods of a node not ready: nobody there can say more. The cache
// of nodes may be behind that of pods, so the server is asked for the node first;
// marked is false where that is well again.
func (r *reconciler) markPods(ctx context.Context, node *corev1.Node) (marked bool, err error) {
	list, err := pods.OnNode(r.pods, node.Name)
	if err != nil {
		return false, err
	}
	list = slices.DeleteFunc(list, func(p *corev1.Pod) bool { return !pods.Ready(p) })
	if len(list) == 0 {
		return true, nil
	}
	fresh, err := r.client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return false, ignoreNotFound(err)
	}
	if fresh.UID != node.UID || readiness(fresh) == corev1.ConditionTrue {
		return false, nil
	}
	var errs []error
	for _, p := range list {
		next := p.DeepCopy()
		c := pods.Condition(next, corev1.PodReady)
		c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		if _, err := r.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
			continue
		}
		r.events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	err = errors.Join(errs...)
	return err == nil, err
}

// taint replaces the taints of the node as it was read.
func (r *reconciler) taint(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	if taints == nil {
		taints = []corev1.Taint{}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		observe(node, taints)
	}
	return err
}

func reference(name string, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
