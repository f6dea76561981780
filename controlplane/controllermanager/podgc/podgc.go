// Package podgc is the pod-garbage-collector-controller. It reads Pods and
// Nodes and deletes Pods that nobody else will, which it first marks Failed: of nodes that are gone or out
// of service, unbound ones being deleted, and ended ones beyond a number.
package podgc

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
	"knarr/internal/informer"
)

// Name is the controller's.
const Name = "pod-garbage-collector-controller"

const (
	// quarantineTime is how long a node must be gone before its pods are.
	quarantineTime = 40 * time.Second
	// sweepPeriod is how often nodes that nobody asks for any more are forgotten: whoever
	// makes pods says how many there are.
	sweepPeriod = 10 * time.Second
)

// ended is the index of pods that have ended, and its only value.
const ended = "knarr.ended"

type reconciler struct {
	nodes, pods cache.Indexer
	client      kubernetes.Interface
	threshold   int

	mu      sync.Mutex
	missing map[string]time.Time // node to when it was missed first
	swept   time.Time
	ended   map[cache.ObjectName]struct{}
}

// New returns the controller, which keeps threshold ended pods; its keys are pods.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, threshold int) (*controller.Controller[cache.ObjectName], error) {
	nodes, podInformer := f.Core().V1().Nodes().Informer(), f.Core().V1().Pods().Informer()
	if err := pods.IndexByNode(podInformer); err != nil {
		return nil, err
	}
	if err := informer.Index(podInformer, cache.Indexers{ended: func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok && pods.Terminal(p) {
			return []string{ended}, nil
		}
		return nil, nil
	}}); err != nil {
		return nil, err
	}
	r := &reconciler{nodes: nodes.GetIndexer(), pods: podInformer.GetIndexer(), client: client, threshold: threshold, missing: map[string]time.Time{}, ended: map[cache.ObjectName]struct{}{}}
	return &controller.Controller[cache.ObjectName]{
		Name:       Name,
		Workers:    4,
		RetryDelay: [2]time.Duration{0, 20 * time.Second}, // upstream looks at every pod as often
		Sources: []controller.Source[cache.ObjectName]{
			{Informer: podInformer, Keys: r.count},
			{Informer: nodes, Keys: func(o metav1.Object) (keys []cache.ObjectName) {
				list, err := pods.OnNode(r.pods, o.GetName())
				_, ok, nerr := r.nodes.GetByKey(o.GetName())
				there := nerr == nil && ok
				if there {
					r.found(o.GetName())
				}
				if err != nil || there && !outOfService(o.(*corev1.Node)) {
					return nil
				}
				for _, p := range list {
					keys = append(keys, cache.MetaObjectToName(p))
				}
				return keys
			}},
		},
		Reconcile: controller.Existing(r.pods, r.reconcile),
	}, nil
}

// count notes whether a pod is there and has ended, and names it. To ask the cache
// for all that have ended would cost their number for each.
func (r *reconciler) count(o metav1.Object) []cache.ObjectName {
	key := cache.MetaObjectToName(o)
	obj, there, err := r.pods.GetByKey(key.String())
	if err != nil {
		return []cache.ObjectName{key}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if there && pods.Terminal(obj.(*corev1.Pod)) {
		r.ended[key] = struct{}{}
	} else {
		delete(r.ended, key)
	}
	return []cache.ObjectName{key}
}

func (r *reconciler) reconcile(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	if pods.Terminal(p) {
		if err := r.trim(ctx); err != nil {
			return 0, err
		}
	}
	if p.Spec.NodeName == "" {
		if p.DeletionTimestamp != nil {
			return 0, r.remove(ctx, p, "unscheduled")
		}
		return 0, nil
	}
	node, ok, err := r.nodes.GetByKey(p.Spec.NodeName)
	if err != nil {
		return 0, err
	}
	if ok {
		n := node.(*corev1.Node)
		if p.DeletionTimestamp != nil && outOfService(n) && !ready(n) {
			return 0, r.remove(ctx, p, "out-of-service")
		}
		return 0, nil
	}
	return r.orphaned(ctx, p)
}

// orphaned deletes a pod whose node is gone, and stays so.
func (r *reconciler) orphaned(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	// A node that has just gone may come back.
	if left := r.quarantined(p.Spec.NodeName, time.Now()); left > 0 {
		return left, nil
	}
	_, err := r.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err := pods.Disrupt(ctx, r.client.CoreV1(), p, "DeletionByPodGC", "PodGC: node no longer exists", true); err != nil {
		return 0, err
	}
	return 0, r.remove(ctx, p, "orphaned")
}

// found forgets that a node was missed: it is there.
func (r *reconciler) found(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, node)
}

// quarantined is how long to wait for the node to come back.
func (r *reconciler) quarantined(node string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.swept) >= sweepPeriod {
		r.swept = now
		maps.DeleteFunc(r.missing, func(_ string, since time.Time) bool { return now.Sub(since) > 10*quarantineTime })
	}
	since, ok := r.missing[node]
	if !ok {
		since = now
		r.missing[node] = now
	}
	return quarantineTime - now.Sub(since)
}

// remove deletes a pod at once: no kubelet is there to end it in peace.
func (r *reconciler) remove(ctx context.Context, p *corev1.Pod, reason string) error {
	if !pods.Terminal(p) {
		if err := r.fail(ctx, p); err != nil {
			return err
		}
	}
	err := r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	observe(p.Namespace, reason, err)
	return err
}

// fail says that the pod failed, for those that count on its end.
func (r *reconciler) fail(ctx context.Context, p *corev1.Pod) error {
	patch := []byte(`{"metadata":{"uid":"` + string(p.UID) + `"},"status":{"phase":"Failed"}}`)
	_, err := r.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// trim deletes the oldest ended pods beyond the threshold.
func (r *reconciler) trim(ctx context.Context) error {
	r.mu.Lock()
	n := len(r.ended)
	r.mu.Unlock()
	if r.threshold <= 0 || n <= r.threshold {
		return nil
	}
	found, err := r.pods.ByIndex(ended, ended)
	if err != nil {
		return err
	}
	for _, p := range excess(found, r.threshold) {
		if err := r.remove(ctx, p, "terminated"); err != nil {
			return err
		}
	}
	return nil
}

// excess are the pods beyond the threshold: evicted ones first, then the oldest.
func excess(found []any, threshold int) []*corev1.Pod {
	var all []*corev1.Pod
	for _, o := range found {
		if p := o.(*corev1.Pod); p.DeletionTimestamp == nil {
			all = append(all, p)
		}
	}
	if len(all) <= threshold {
		return nil
	}
	evicted := func(p *corev1.Pod) int {
		if p.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(evicted(a), evicted(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all[:len(all)-threshold]
}

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
