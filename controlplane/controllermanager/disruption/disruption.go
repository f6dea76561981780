// Package disruption is the disruption-controller. It reads
// PodDisruptionBudgets, pods and the scale of what controls them; it writes the
// budgets' status, and the status of pods whose announced disruption did not
// happen.
package disruption

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "disruption-controller"

// disruptionTimeout is how long an announced disruption may take to begin.
const disruptionTimeout = 2 * time.Minute

// A key names a budget, or a pod whose disruption was announced.
type key struct {
	pod bool
	cache.ObjectName
}

type reconciler struct {
	budgets, pods cache.Indexer
	scales        *scales
	client        kubernetes.Interface
	events        record.EventRecorder
	failures      controller.Failures[cache.ObjectName]
	selectors     sync.Map // by a budget's cache.ObjectName its parsed
}

// A parsed is a budget's selector as it was read once: each pod asks all of its namespace.
type parsed struct {
	from     *metav1.LabelSelector
	selector labels.Selector
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) *controller.Controller[key] {
	budgets, pods := f.Policy().V1().PodDisruptionBudgets().Informer(), f.Core().V1().Pods().Informer()
	sets, rcs := f.Apps().V1().ReplicaSets().Informer(), f.Core().V1().ReplicationControllers().Informer()
	deployments, stateful := f.Apps().V1().Deployments().Informer(), f.Apps().V1().StatefulSets().Informer()
	r := &reconciler{
		budgets: budgets.GetIndexer(), pods: pods.GetIndexer(), client: client, events: events, failures: controller.Failures[cache.ObjectName]{Name: Name},
		scales: &scales{client: client, sets: sets.GetIndexer(), rcs: rcs.GetIndexer(),
			deployments: deployments.GetIndexer(), stateful: stateful.GetIndexer()},
	}
	return &controller.Controller[key]{
		Name: Name,
		Sources: []controller.Source[key]{
			{Informer: budgets, Keys: func(o metav1.Object) []key { return []key{{false, cache.MetaObjectToName(o)}} }},
			{Informer: pods, Keys: r.ofPod},
			{Informer: sets}, {Informer: rcs}, {Informer: deployments}, {Informer: stateful},
		},
		Reconcile: r.reconcile,
	}
}

// budgetsOfPod is how many of a pod's budgets a change of it has counted again. Upstream
// does with one: a pod with several is not evicted at all, and thousands would be thousands
// of writes for each change.
const budgetsOfPod = 8

// ofPod are the budgets that select a pod, and the pod itself if its disruption
// was announced.
func (r *reconciler) ofPod(o metav1.Object) (keys []key) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	budgets := r.selecting(pod)
	if len(budgets) > 1 {
		slices.SortFunc(budgets, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.Name, b.Name) })
		r.events.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", pod.Namespace, pod.Name, budgets[0].Name)
	}
	for _, b := range budgets[:min(len(budgets), budgetsOfPod)] {
		keys = append(keys, key{false, cache.MetaObjectToName(b)})
	}
	if _, announced := stale(pod, time.Now()); announced {
		keys = append(keys, key{true, cache.MetaObjectToName(pod)})
	}
	return keys
}

// selecting are the budgets that select pod.
func (r *reconciler) selecting(pod *corev1.Pod) (budgets []*policyv1.PodDisruptionBudget) {
	all, err := r.budgets.ByIndex(cache.NamespaceIndex, pod.Namespace)
	if err != nil {
		return nil
	}
	for _, o := range all {
		b := o.(*policyv1.PodDisruptionBudget)
		if s := r.selector(b); s != nil && s.Matches(labels.Set(pod.Labels)) {
			budgets = append(budgets, b)
		}
	}
	return budgets
}

// selector is a budget's; nil for one that cannot be read.
func (r *reconciler) selector(b *policyv1.PodDisruptionBudget) labels.Selector {
	name := cache.MetaObjectToName(b)
	if p, ok := r.selectors.Load(name); ok && p.(parsed).from == b.Spec.Selector {
		return p.(parsed).selector
	}
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		s = nil
	}
	r.selectors.Store(name, parsed{b.Spec.Selector, s})
	return s
}

func (r *reconciler) reconcile(ctx context.Context, k key) (time.Duration, error) {
	if k.pod {
		return r.settle(ctx, k.ObjectName)
	}
	obj, ok, err := r.budgets.GetByKey(k.String())
	if err != nil || !ok {
		r.selectors.Delete(k.ObjectName)
		r.failures.Forget(k.ObjectName)
		return 0, err
	}
	budget := obj.(*policyv1.PodDisruptionBudget)
	next, again, err := r.sync(ctx, budget)
	if err == nil {
		r.failures.Forget(k.ObjectName)
	}
	switch {
	case apierrors.IsConflict(err):
		return 0, err
	case err != nil:
		// What cannot be known must not be disrupted.
		r.failures.Log(ctx, k.ObjectName, err)
		next = failed(budget, err)
	case next == nil:
		return again, nil
	}
	_, err = r.client.PolicyV1().PodDisruptionBudgets(budget.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return again, err
}

// sync is the budget with the status it should have, nil when it has it.
func (r *reconciler) sync(ctx context.Context, budget *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudget, time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		r.events.Eventf(budget, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return nil, 0, err
	}
	var pods []*corev1.Pod
	if err := cache.ListAllByNamespace(r.pods, budget.Namespace, selector, func(o any) { pods = append(pods, o.(*corev1.Pod)) }); err != nil {
		return nil, 0, err
	}
	if len(pods) == 0 {
		r.events.Eventf(budget, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	expected := len(pods)
	if ofScale(&budget.Spec) {
		var unmanaged int
		if expected, unmanaged, err = r.scales.expected(ctx, pods); err != nil {
			r.events.Eventf(budget, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
			return nil, 0, err
		}
		if unmanaged > 0 {
			r.events.Eventf(budget, corev1.EventTypeWarning, "UnmanagedPods", "Pods selected by this PodDisruptionBudget (selector: %v) were found "+
				"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
				"To account for these pods please set \".spec.minAvailable\" "+
				"field of the PDB to an integer value.", budget.Spec.Selector)
		}
	}
	next, again, left, err := plan(budget, pods, expected, time.Now())
	if err != nil {
		r.events.Eventf(budget, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
		return nil, 0, err
	}
	for _, pod := range left {
		r.events.Eventf(pod, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", budget.Namespace, budget.Namespace)
	}
	if apiequality.Semantic.DeepEqual(next.Status, budget.Status) {
		return nil, again, nil
	}
	return next, again, nil
}

// failed is the budget when its status cannot be known.
func failed(budget *policyv1.PodDisruptionBudget, err error) *policyv1.PodDisruptionBudget {
	next := budget.DeepCopy()
	next.Status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
		Reason: policyv1.SyncFailedReason, Message: err.Error(), ObservedGeneration: next.Status.ObservedGeneration})
	return next
}

// settle takes back an announcement that nothing came of.
func (r *reconciler) settle(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.pods.GetByKey(name.String())
	if err != nil || !ok {
		return 0, err
	}
	pod := obj.(*corev1.Pod)
	left, announced := stale(pod, time.Now())
	if !announced || left > 0 {
		return left, nil
	}
	pod = pod.DeepCopy()
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.DisruptionTarget {
			*c = corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse,
				ObservedGeneration: c.ObservedGeneration, LastTransitionTime: metav1.Now()}
			if c.ObservedGeneration != 0 || pod.Status.ObservedGeneration != 0 {
				c.ObservedGeneration = pod.Generation
			}
		}
	}
	_, err = r.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}

// ofScale says that the budget is a part of what the pods' controllers want.
func ofScale(spec *policyv1.PodDisruptionBudgetSpec) bool {
	return spec.MaxUnavailable != nil || spec.MinAvailable != nil && spec.MinAvailable.Type == intstr.String
}

// replicas are spec.replicas, which the API server has defaulted.
func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}
