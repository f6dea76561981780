// Package endpoint is the endpoints-controller. It reads Services and Pods and
// writes the Endpoints of Services that select pods.
package endpoint

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/backends"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "endpoints-controller"

const (
	managedBy = "endpoints.kubernetes.io/managed-by"
	manager   = "endpoint-controller"
)

type reconciler struct {
	services, pods, endpoints cache.Indexer
	client                    kubernetes.Interface
	events                    record.EventRecorder
	wrote                     *ownwrites.Log
}

// New returns the controller; its keys are Services. Changes of pods are gathered for
// batch.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, batch time.Duration) (*controller.Controller[cache.ObjectName], error) {
	services, pods, endpoints := f.Core().V1().Services().Informer(), f.Core().V1().Pods().Informer(), f.Core().V1().Endpoints().Informer()
	behind, err := backends.Source(services, pods)
	if err != nil {
		return nil, err
	}
	behind.Delay = batch
	r := &reconciler{services.GetIndexer(), pods.GetIndexer(), endpoints.GetIndexer(), client, events, ownwrites.New()}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(services),
			behind,
			controller.Self(endpoints),
		},
		Reconcile: r.reconcile,
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.services.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !ok {
		r.wrote.Forget(key)
		return 0, r.remove(ctx, key)
	}
	svc := obj.(*corev1.Service)
	if !backends.Selects(svc) {
		return 0, nil
	}
	if !r.wrote.Seen(key) {
		return time.Minute, nil // events come before
	}
	all, err := backends.Pods(r.pods, svc)
	if err != nil {
		return 0, err
	}
	cached, ok, err := r.endpoints.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	have, _ := cached.(*corev1.Endpoints)
	want, over := subsets(svc, all)
	labels := labelsOf(svc)
	if ok && apiequality.Semantic.DeepEqual(have.Subsets, want) && maps.Equal(have.Labels, labels) &&
		(have.Annotations[corev1.EndpointsOverCapacity] != "") == over {
		return 0, nil
	}
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}}
	if ok {
		next = have.DeepCopy()
	}
	next.Subsets, next.Labels = want, labels
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[corev1.EndpointsLastChangeTriggerTime] = backends.Trigger(svc, all)
	delete(next.Annotations, corev1.EndpointsOverCapacity)
	if over {
		next.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	}
	return 0, r.write(ctx, key, next, ok)
}

func (r *reconciler) write(ctx context.Context, key cache.ObjectName, next *corev1.Endpoints, update bool) (err error) {
	api := r.client.CoreV1().Endpoints(key.Namespace)
	var made *corev1.Endpoints
	if update {
		made, err = api.Update(ctx, next, metav1.UpdateOptions{})
	} else {
		made, err = api.Create(ctx, next, metav1.CreateOptions{})
	}
	switch {
	case err == nil:
		r.wrote.Wrote(key, r.endpoints, made)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsConflict(err):
	case update:
		r.events.Eventf(next, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %v: %v", key, err)
	default:
		r.events.Eventf(next, corev1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %v: %v", key, err)
	}
	return err
}

// remove deletes what a Service left behind, but only what is this
// controller's: others make Endpoints without a Service.
func (r *reconciler) remove(ctx context.Context, key cache.ObjectName) error {
	obj, ok, err := r.endpoints.GetByKey(key.String())
	if err != nil || !ok {
		return err
	}
	have := obj.(*corev1.Endpoints)
	if have.Labels[managedBy] != manager {
		return nil
	}
	err = r.client.CoreV1().Endpoints(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func labelsOf(svc *corev1.Service) map[string]string {
	out := maps.Clone(svc.Labels)
	if out == nil {
		out = map[string]string{}
	}
	delete(out, corev1.IsHeadlessService)
	if backends.Headless(svc) {
		out[corev1.IsHeadlessService] = ""
	}
	out[managedBy] = manager
	return out
}
