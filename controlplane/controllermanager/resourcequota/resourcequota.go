// Package resourcequota is the resourcequota-controller. It reads
// ResourceQuotas, pods, services and claims of volumes and devices, and the metadata of whatever else
// a quota counts; it writes the quotas' status.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/quota"
)

// Name is the controller's.
const Name = "resourcequota-controller"

// lookAgain is when a resource that is not served may have come.
const lookAgain = 30 * time.Second

type reconciler struct {
	quotas cache.Indexer
	// typed are the objects whose use is more than their number.
	typed  []tracked
	counts *counters
	charges
	client     kubernetes.Interface
	syncPeriod time.Duration
}

// tracked are the objects of one resource.
type tracked struct {
	resource schema.GroupResource
	informer cache.SharedIndexInformer
	// changed says that an update may use less, or be in other scopes.
	changed func(old, now any) bool
}

// New returns the controller. Each quota is counted anew after syncPeriod, which gives
// back what was charged for writes that failed afterwards.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, meta metadata.Interface, syncPeriod time.Duration) *controller.Controller[cache.ObjectName] {
	core := f.Core().V1()
	quotas := core.ResourceQuotas().Informer()
	r := &reconciler{
		quotas: quotas.GetIndexer(), client: client, syncPeriod: syncPeriod,
		counts:  newCounters(client.Discovery(), meta),
		charges: charges{of: map[cache.ObjectName]charge{}},
		typed: []tracked{
			{schema.GroupResource{Resource: "pods"}, core.Pods().Informer(), podChanged},
			{schema.GroupResource{Resource: "services"}, core.Services().Informer(), serviceChanged},
			{schema.GroupResource{Resource: "persistentvolumeclaims"}, core.PersistentVolumeClaims().Informer(), claimChanged},
			{schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, f.Resource().V1().ResourceClaims().Informer(), neverLess},
		},
	}
	return &controller.Controller[cache.ObjectName]{
		Name:      Name,
		Workers:   5,
		Feeds:     []func(context.Context, func(), func(cache.ObjectName)) error{r.follow(quotas)},
		Reconcile: r.reconcile,
	}
}

// follow yields the quotas that may be out of date. More use alone makes none:
// admission charges before the object can be seen here, and counting at once
// would take the charge back.
func (r *reconciler) follow(quotas cache.SharedIndexInformer) func(context.Context, func(), func(cache.ObjectName)) error {
	return func(ctx context.Context, ready func(), add func(cache.ObjectName)) error {
		defer r.counts.stop()
		r.counts.start(ctx, func(gr schema.GroupResource, namespace string) { r.enqueueQuotas(gr, namespace, add) })
		self := func(o any) {
			if m, ok := o.(metav1.Object); ok {
				add(cache.MetaObjectToName(m))
			}
		}
		synced, err := listen(ctx, quotas, cache.ResourceEventHandlerFuncs{
			AddFunc: self, DeleteFunc: func(o any) {
				self(informer.Object(o))
				r.enqueueQuotas(schema.GroupResource{Resource: "resourcequotas"}, namespaceOf(o), add)
			},
			UpdateFunc: func(old, now any) {
				was, is := old.(*corev1.ResourceQuota), now.(*corev1.ResourceQuota)
				if charged(was, is) {
					r.note(cache.MetaObjectToName(is), time.Now())
				}
				if !informer.Same(old, now) || !apiequality.Semantic.DeepEqual(was.Spec, is.Spec) || !quota.Equal(is.Spec.Hard, is.Status.Hard) {
					self(now)
				}
			},
		})
		if err != nil {
			return err
		}
		all := []cache.DoneChecker{synced}
		for _, t := range r.typed {
			synced, err := listen(ctx, t.informer, cache.ResourceEventHandlerFuncs{
				DeleteFunc: func(o any) { r.enqueueQuotas(t.resource, namespaceOf(o), add) },
				UpdateFunc: func(old, now any) {
					if !informer.Same(old, now) || t.changed(old, now) {
						r.enqueueQuotas(t.resource, namespaceOf(now), add)
					}
				},
			})
			if err != nil {
				return err
			}
			all = append(all, synced)
		}
		if cache.WaitFor(ctx, "", all...) {
			ready()
		}
		<-ctx.Done()
		return nil
	}
}

// listen handles events until ctx ends.
func listen(ctx context.Context, inf cache.SharedIndexInformer, h cache.ResourceEventHandler) (cache.DoneChecker, error) {
	reg, err := inf.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("watch for %s: %w", Name, err)
	}
	context.AfterFunc(ctx, func() { _ = inf.RemoveEventHandler(reg) })
	return reg.HasSyncedChecker(), nil
}

func namespaceOf(o any) string {
	if m, ok := informer.Object(o).(metav1.Object); ok {
		return m.GetNamespace()
	}
	return ""
}

// enqueueQuotas yields the quotas of a namespace that account for a resource.
func (r *reconciler) enqueueQuotas(gr schema.GroupResource, namespace string, add func(cache.ObjectName)) {
	measure, ok := quota.For(gr)
	found, err := r.quotas.ByIndex(cache.NamespaceIndex, namespace)
	if !ok || err != nil {
		return
	}
	for _, o := range found {
		if q := o.(*corev1.ResourceQuota); len(measure.Of(q.Status.Hard)) > 0 {
			add(cache.MetaObjectToName(q))
		}
	}
}

func podChanged(old, now any) bool {
	was, is, at := old.(*corev1.Pod), now.(*corev1.Pod), time.Now()
	return quota.PodTerminating(was) != quota.PodTerminating(is) ||
		!quota.PodEnded(was, at) && quota.PodEnded(is, at) ||
		!quota.PodEnded(is, at) && !sameResources(was, is)
}

// sameResources says that the kubelet reports no other resources.
func sameResources(a, b *corev1.Pod) bool {
	for _, both := range [][2][]corev1.ContainerStatus{
		{a.Status.ContainerStatuses, b.Status.ContainerStatuses},
		{a.Status.InitContainerStatuses, b.Status.InitContainerStatuses},
	} {
		for i := range both[0] {
			for k := range both[1] {
				if both[0][i].Name == both[1][k].Name && !apiequality.Semantic.DeepEqual(both[0][i].Resources, both[1][k].Resources) {
					return false
				}
			}
		}
	}
	return true
}

func serviceChanged(old, now any) bool {
	measure, _ := quota.For(schema.GroupResource{Resource: "services"})
	return !quota.Equal(measure.Use(old.(*corev1.Service), time.Time{}), measure.Use(now.(*corev1.Service), time.Time{}))
}

// neverLess is for objects whose use stays as it is.
func neverLess(any, any) bool { return false }

func claimChanged(old, now any) bool {
	was, is := old.(*corev1.PersistentVolumeClaim), now.(*corev1.PersistentVolumeClaim)
	measure, _ := quota.For(schema.GroupResource{Resource: "persistentvolumeclaims"})
	return quota.ClaimChanged(is, was) || !quota.Equal(measure.Use(was, time.Time{}), measure.Use(is, time.Time{}))
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.quotas.GetByKey(key.String())
	r.counts.keep(r.wanted())
	if err != nil || !ok {
		r.forget(key)
		return 0, err
	}
	q := obj.(*corev1.ResourceQuota)
	now := time.Now()
	used, again := quota.Only(q.Status.Used, names(q.Spec.Hard)), r.syncPeriod
	var errs []error
	for _, t := range r.typed {
		measure, _ := quota.For(t.resource)
		objs, err := t.informer.GetIndexer().ByIndex(cache.NamespaceIndex, q.Namespace)
		if err == nil {
			used, err = counted(used, q, measure, objs, now)
		}
		errs = append(errs, err)
	}
	for name := range q.Spec.Hard {
		gr, ok := quota.Counted(name)
		if !ok {
			continue
		}
		n, err := r.count(ctx, gr, q.Namespace)
		switch {
		case errors.Is(err, errNotServed):
			again = lookAgain
		case err != nil:
			errs = append(errs, err)
		default:
			if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
				n = 0
			}
			used[name] = quota.Number(n)
		}
	}
	if most, lowered := atLeast(used, q.Status.Used); lowered {
		if wait := r.wait(key, time.Now()); wait > 0 {
			used, again = most, wait
		}
	}
	if !apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) || q.Status.Used == nil || !quota.Equal(used, q.Status.Used) {
		next := q.DeepCopy()
		next.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: used}
		again = min(again, settled)
		_, err := r.client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		errs = append(errs, err)
	}
	return again, errors.Join(errs...)
}

// count is how many objects of a resource there are in a namespace.
func (r *reconciler) count(ctx context.Context, gr schema.GroupResource, namespace string) (int, error) {
	if gr == (schema.GroupResource{Resource: "resourcequotas"}) {
		all, err := r.quotas.ByIndex(cache.NamespaceIndex, namespace)
		return len(all), err
	}
	return r.counts.count(ctx, gr, namespace)
}

// wanted are the resources that some quota counts.
func (r *reconciler) wanted() map[schema.GroupResource]bool {
	wanted := map[schema.GroupResource]bool{}
	for _, o := range r.quotas.List() {
		for name := range o.(*corev1.ResourceQuota).Spec.Hard {
			if gr, ok := quota.Counted(name); ok {
				wanted[gr] = true
			}
		}
	}
	return wanted
}

func names(list corev1.ResourceList) (names []corev1.ResourceName) {
	for n := range list {
		names = append(names, n)
	}
	return names
}

// counted puts what objs use of q into used.
func counted(used corev1.ResourceList, q *corev1.ResourceQuota, measure quota.Measure, objs []any, now time.Time) (corev1.ResourceList, error) {
	mine := measure.Of(q.Spec.Hard)
	if len(mine) == 0 {
		return used, nil
	}
	sum := quota.Zero(mine)
	for _, o := range objs {
		obj := o.(runtime.Object)
		match, err := measure.Matches(&q.Spec, obj)
		if err != nil {
			return used, fmt.Errorf("count what quota %s/%s limits: %w", q.Namespace, q.Name, err)
		}
		if match {
			sum = quota.Add(sum, quota.Only(measure.Use(obj, now), mine))
		}
	}
	for n, amount := range sum {
		used[n] = amount
	}
	return used, nil
}
