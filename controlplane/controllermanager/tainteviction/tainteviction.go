// Package tainteviction is the taint-eviction-controller. It reads Nodes and
// Pods, and of the Pods that do not, or no longer, tolerate the NoExecute taints
// of their node it says so in their status and deletes them.
package tainteviction

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "taint-eviction-controller"

type reconciler struct {
	nodes, pods cache.Indexer
	client      kubernetes.Interface
	events      record.EventRecorder

	mu sync.Mutex
	// since is when a pod was first seen on a node that taints it.
	since map[cache.ObjectName]start
}

// behindRetry is how soon a pod is looked at again of whose node the cache is behind; what
// the cache learns makes it sooner.
const behindRetry = time.Second

type start struct {
	uid types.UID
	at  time.Time
}

// New returns the controller; its keys are pods.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	nodes, podInformer := f.Core().V1().Nodes().Informer(), f.Core().V1().Pods().Informer()
	if err := pods.IndexByNode(podInformer); err != nil {
		return nil, err
	}
	r := &reconciler{nodes: nodes.GetIndexer(), pods: podInformer.GetIndexer(), client: client, events: events, since: map[cache.ObjectName]start{}}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 8,
		Sources: []controller.Source[cache.ObjectName]{
			{Informer: podInformer, Keys: r.tainted},
			{Informer: nodes, Keys: r.on},
		},
		Reconcile: r.reconcile,
	}, nil
}

// tainted names the pod if there may be something to do about it: most nodes
// bear no such taint.
func (r *reconciler) tainted(o metav1.Object) []cache.ObjectName {
	key := cache.MetaObjectToName(o)
	r.mu.Lock()
	_, waiting := r.since[key]
	r.mu.Unlock()
	if waiting || len(r.taints(o.(*corev1.Pod).Spec.NodeName)) > 0 {
		return []cache.ObjectName{key}
	}
	return nil
}

// on names the pods of a node whose taints may concern them, now or before.
func (r *reconciler) on(o metav1.Object) (keys []cache.ObjectName) {
	concerned := len(executing(o.(*corev1.Node))) > 0
	r.mu.Lock()
	none := len(r.since) == 0
	r.mu.Unlock()
	if none && !concerned { // as nearly always
		return nil
	}
	list, err := pods.OnNode(r.pods, o.GetName())
	if err != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range list {
		key := cache.MetaObjectToName(p)
		if _, waiting := r.since[key]; waiting || concerned {
			keys = append(keys, key)
		}
	}
	return keys
}

func (r *reconciler) taints(node string) []corev1.Taint {
	if node == "" {
		return nil
	}
	obj, ok, err := r.nodes.GetByKey(node)
	if err != nil || !ok {
		return nil
	}
	return executing(obj.(*corev1.Node))
}

func executing(node *corev1.Node) (out []corev1.Taint) {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.pods.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !ok {
		r.stop(key)
		return 0, nil
	}
	p := obj.(*corev1.Pod)
	taints := r.taints(p.Spec.NodeName)
	stay, forever := tolerated(taints, p.Spec.Tolerations)
	if len(taints) == 0 || forever || p.DeletionTimestamp != nil || pods.Terminal(p) {
		if r.stop(key) && p.DeletionTimestamp == nil {
			r.events.Eventf(reference(p), corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
		}
		return 0, nil
	}
	left := stay - time.Since(r.start(key, p.UID))
	if left > 0 {
		return left, nil
	}
	// The cache is as old as its watch has stood still, so the server has the last word.
	node, err := r.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err == nil && !apiequality.Semantic.DeepEqual(executing(node), taints) {
		return behindRetry, nil
	}
	r.stop(key)
	r.events.Eventf(reference(p), corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s", key)
	if err := pods.Disrupt(ctx, r.client.CoreV1(), p, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", false); err != nil {
		return 0, err
	}
	err = r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err == nil {
		deletions.Inc()
		latency.Observe((-left).Seconds())
	}
	return 0, err
}

// start is when the pod's time began to run.
func (r *reconciler) start(key cache.ObjectName, uid types.UID) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.since[key]
	if !ok || s.uid != uid {
		s = start{uid, time.Now()}
		r.since[key] = s
	}
	return s.at
}

// stop ends the pod's time; it reports whether it ran.
func (r *reconciler) stop(key cache.ObjectName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.since[key]
	delete(r.since, key)
	return ok
}

// tolerated is how long a pod may stay beside the taints.
func tolerated(taints []corev1.Taint, tolerations []corev1.Toleration) (stay time.Duration, forever bool) {
	forever = true
	for i := range taints {
		found := false
		for j := range tolerations {
			t := &tolerations[j]
			if !t.ToleratesTaint(klog.Background(), &taints[i], true) {
				continue
			}
			found = true
			if t.TolerationSeconds != nil {
				s := time.Duration(max(0, *t.TolerationSeconds)) * time.Second
				if forever || s < stay {
					stay = s
				}
				forever = false
			}
			break
		}
		if !found {
			return 0, false
		}
	}
	return stay, forever
}

func reference(p *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}
