// Package replicaset is the replicaset-controller and the
// replicationcontroller-controller. It reads ReplicaSets,
// ReplicationControllers and Pods, creates, deletes and adopts Pods, and
// writes the status of its objects.
package replicaset

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
)

// Name is the ReplicaSet controller's, NameRC the ReplicationController's.
const (
	Name   = "replicaset-controller"
	NameRC = "replicationcontroller-controller"
)

// A kind is what differs between the two: both are seen as a ReplicaSet.
type kind struct {
	gvk      schema.GroupVersionKind
	informer cache.SharedIndexInformer
	// terminating says that the status counts pods on their way out.
	terminating bool
	// see turns a cached object into a ReplicaSet that is the caller's to change.
	see func(obj any) *appsv1.ReplicaSet
	// selector is that of a cached object, which nobody may change.
	selector func(obj any) *metav1.LabelSelector
	// fresh reads the object from the server.
	fresh func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// store writes the status.
	store func(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error)
}

type reconciler struct {
	kind
	pods       cache.Indexer
	podControl pods.PodControl
	wrote      *ownwrites.Log
}

// New returns the ReplicaSet controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	api := client.AppsV1()
	return build(Name, f, client, events, kind{
		gvk:      appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		informer: f.Apps().V1().ReplicaSets().Informer(), terminating: true,
		see: func(obj any) *appsv1.ReplicaSet {
			if rs, ok := obj.(*appsv1.ReplicaSet); ok {
				return rs.DeepCopy()
			}
			return nil
		},
		selector: func(obj any) *metav1.LabelSelector { return obj.(*appsv1.ReplicaSet).Spec.Selector },
		fresh: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return api.ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		store: func(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error) {
			return api.ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
		},
	})
}

func build(name string, f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, k kind) (*controller.Controller[cache.ObjectName], error) {
	podInformer := f.Core().V1().Pods().Informer()
	for _, inf := range []cache.SharedIndexInformer{podInformer, k.informer} {
		if err := ownership.Index(inf); err != nil {
			return nil, err
		}
	}
	r := &reconciler{
		kind: k, pods: podInformer.GetIndexer(), wrote: ownwrites.New(),
		podControl: pods.PodControl{Client: client.CoreV1(), Events: events},
	}
	return &controller.Controller[cache.ObjectName]{
		Name:    name,
		Workers: 5,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(k.informer),
			ownership.Source(podInformer, k.gvk.GroupKind(), ownership.Matching(k.informer.GetIndexer(), k.selector)),
		},
		Reconcile: ownwrites.Reconcile(r.wrote, r.informer.GetIndexer(), r.reconcile),
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName, obj any) (time.Duration, error) {
	rs := r.see(obj)
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil || selector.Empty() {
		return 0, nil // validation lets none through
	}
	all, err := ownership.Of[*corev1.Pod](r.pods, rs, true)
	if err != nil {
		return 0, err
	}
	active, terminating, err := r.claim(ctx, rs, selector, all)
	if err != nil {
		return 0, err
	}
	var manageErr error
	if rs.DeletionTimestamp == nil {
		manageErr = r.manage(ctx, key, rs, active)
	}
	now := time.Now()
	next := status(rs, active, terminating, manageErr, now)
	if !r.terminating {
		next.TerminatingReplicas = nil
	}
	if statusChanged(rs, next) {
		if err := r.writeStatus(ctx, key, rs, next); err != nil {
			return 0, err
		}
	}
	if manageErr != nil {
		return 0, manageErr
	}
	return untilAvailable(active, rs.Spec.MinReadySeconds, now), nil
}

// claim gives the active pods of rs and how many are on their way out.
func (r *reconciler) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector, all []*corev1.Pod) (active []*corev1.Pod, terminating int, err error) {
	for _, p := range all {
		switch {
		case pods.Active(p):
			active = append(active, p)
		case pods.Terminating(p) && metav1.IsControlledBy(p, rs) && selector.Matches(labels.Set(p.Labels)):
			terminating++
		}
	}
	claim := ownership.Claim[*corev1.Pod]{
		Owner: rs, Kind: r.gvk, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) { return r.fresh(ctx, rs.Namespace, rs.Name) },
		Patch: r.podControl.Patch,
	}
	active, err = claim.Objects(ctx, active)
	return active, terminating, err
}

// manage creates or deletes pods until there are as many as wanted.
func (r *reconciler) manage(ctx context.Context, key cache.ObjectName, rs *appsv1.ReplicaSet, active []*corev1.Pod) error {
	about := &corev1.ObjectReference{APIVersion: r.gvk.GroupVersion().String(), Kind: r.gvk.Kind,
		Namespace: rs.Namespace, Name: rs.Name, UID: rs.UID, ResourceVersion: rs.ResourceVersion}
	now := time.Now()
	create, remove := plan(rs, active, r.related, now)
	observe(active, remove, now)
	if create > 0 {
		ref := metav1.NewControllerRef(rs, r.gvk)
		_, err := pods.SlowStart(create, func(int) error {
			made, err := r.podControl.Create(ctx, pods.FromTemplate(&rs.Spec.Template, rs, ref), about)
			if err == nil {
				r.wrote.Wrote(key, r.pods, made)
			}
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // all that the namespace holds is going
			}
			return err
		})
		return err
	}
	_, err := pods.Parallel(len(remove), func(i int) error {
		err := r.podControl.Delete(ctx, remove[i], about)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err == nil {
			r.wrote.Deleted(key, r.pods, remove[i])
		}
		return err
	})
	return err
}

// plan says how many pods to create, or which to delete.
func plan(rs *appsv1.ReplicaSet, active []*corev1.Pod, related func(*appsv1.ReplicaSet) []*corev1.Pod, now time.Time) (create int, remove []*corev1.Pod) {
	excess := len(active) - int(*rs.Spec.Replicas)
	switch {
	case excess < 0:
		return -excess, nil
	case excess == 0:
		return 0, nil
	case excess == len(active): // all go: no rank is needed
		return 0, active
	}
	return 0, pods.ToDelete(active, related(rs), excess, now)
}

// related are the pods of rs and of all that share its controller.
func (r *reconciler) related(rs *appsv1.ReplicaSet) []*corev1.Pod {
	owners := []metav1.Object{rs}
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
		if all, err := ownership.Of[metav1.Object](r.informer.GetIndexer(), &metav1.ObjectMeta{UID: ref.UID}, false); err == nil {
			owners = all
		}
	}
	var out []*corev1.Pod
	for _, o := range owners {
		if found, err := ownership.Of[*corev1.Pod](r.pods, o, false); err == nil {
			out = append(out, found...)
		}
	}
	return out
}

// statusTries is how often a status is written over a lost race.
const statusTries = 2

func (r *reconciler) writeStatus(ctx context.Context, key cache.ObjectName, rs *appsv1.ReplicaSet, next appsv1.ReplicaSetStatus) error {
	next.ObservedGeneration = rs.Generation
	for try := 1; ; try++ {
		rs.Status = next
		stored, err := r.store(ctx, rs)
		switch {
		case err == nil:
			r.wrote.Wrote(key, r.informer.GetIndexer(), stored)
			return nil
		case apierrors.IsNotFound(err):
			return nil
		case try == statusTries || !apierrors.IsConflict(err):
			return err
		}
		fresh, ferr := r.fresh(ctx, rs.Namespace, rs.Name)
		if ferr != nil {
			return errors.Join(err, ferr)
		}
		if fresh.GetUID() != rs.UID {
			return nil
		}
		rs = r.see(fresh)
	}
}
