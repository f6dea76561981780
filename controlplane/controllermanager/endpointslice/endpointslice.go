// Package endpointslice is the endpointslice-controller. It reads Services,
// Pods and Nodes and writes the EndpointSlices of Services that select pods.
package endpointslice

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/backends"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
	"knarr/internal/informer"
)

// Name is the controller's.
const Name = "endpointslice-controller"

// manager marks this controller's slices.
const manager = "endpointslice-controller.k8s.io"

// byService is the index of slices by the Service they belong to.
const byService = "knarr.service"

type reconciler struct {
	services, pods, nodes, slices cache.Indexer
	client                        kubernetes.Interface
	events                        record.EventRecorder
	wrote                         *ownwrites.Log
	perSlice                      int
	zones                         zones
}

// Config is how slices are filled, and when. A zero value means its default.
type Config struct {
	// MaxEndpointsPerSlice is the most endpoints one slice holds. Default 100.
	MaxEndpointsPerSlice int
	// UpdatesBatchPeriod is how long changes of pods are gathered. Default 0.
	UpdatesBatchPeriod time.Duration
}

// New returns the controller; its keys are Services.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, cfg Config) (*controller.Controller[cache.ObjectName], error) {
	services, podInformer := f.Core().V1().Services().Informer(), f.Core().V1().Pods().Informer()
	nodes, slices := f.Core().V1().Nodes().Informer(), f.Discovery().V1().EndpointSlices().Informer()
	err := informer.Index(slices, cache.Indexers{byService: func(obj any) ([]string, error) {
		key, ok := serviceOf(obj.(metav1.Object))
		if !ok {
			return nil, nil
		}
		return []string{key.String()}, nil
	}})
	if err != nil {
		return nil, err
	}
	if err := informer.Index(services, cache.Indexers{byTopology: wantsTopology}); err != nil {
		return nil, err
	}
	behind, err := backends.Source(services, podInformer)
	if err != nil {
		return nil, err
	}
	behind.Delay = cfg.UpdatesBatchPeriod
	if err := pods.IndexByNode(podInformer); err != nil {
		return nil, err
	}
	r := &reconciler{services: services.GetIndexer(), pods: podInformer.GetIndexer(), nodes: nodes.GetIndexer(), slices: slices.GetIndexer(),
		client: client, events: events, wrote: ownwrites.New(), zones: zones{of: map[string]share{}}, perSlice: cmp.Or(cfg.MaxEndpointsPerSlice, 100)}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(services),
			behind,
			{Informer: nodes, Keys: r.relocated(behind.Keys)},
			{Informer: slices, Keys: func(o metav1.Object) []cache.ObjectName {
				if key, ok := serviceOf(o); ok {
					return []cache.ObjectName{key}
				}
				return nil
			}},
		},
		Feeds: []func(context.Context, func(), func(cache.ObjectName)) error{
			func(ctx context.Context, ready func(), _ func(cache.ObjectName)) error {
				running.Store(r)
				defer running.CompareAndSwap(r, nil)
				ready()
				<-ctx.Done()
				return nil
			},
		},
		Reconcile: r.reconcile,
	}, nil
}

// serviceOf names the Service of a slice of this controller.
func serviceOf(o metav1.Object) (cache.ObjectName, bool) {
	name := o.GetLabels()[discoveryv1.LabelServiceName]
	if name == "" || o.GetLabels()[discoveryv1.LabelManagedBy] != manager {
		return cache.ObjectName{}, false
	}
	return cache.NewObjectName(o.GetNamespace(), name), true
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	again, err := r.sync(ctx, key)
	observeSync(again > 0, err)
	return again, err
}

// sync makes the slices of a Service right; it is done again after a while if the cache does
// not have yet what was written before.
func (r *reconciler) sync(ctx context.Context, key cache.ObjectName) (again time.Duration, err error) {
	obj, ok, err := r.services.GetByKey(key.String())
	if err != nil || !ok { // its slices are the garbage collector's
		r.wrote.Forget(key)
		return 0, err
	}
	svc := obj.(*corev1.Service)
	if !backends.Selects(svc) || svc.DeletionTimestamp != nil {
		return 0, nil
	}
	if !r.wrote.Seen(key) {
		return time.Minute, nil // events come before
	}
	all, err := backends.Pods(r.pods, svc)
	if err != nil {
		return 0, err
	}
	have, err := r.have(svc)
	if err != nil {
		return 0, err
	}
	var ratios map[string]float64
	if auto(svc) {
		ratios = r.zones.shares()
	}
	changes := plan(svc, all, r.zone, ratios, have, r.perSlice)
	observe(svc, have, changes)
	for _, n := range changes.notices {
		r.events.Event(svc, n.kind, n.reason, n.message)
	}
	if err := r.apply(ctx, key, changes, backends.Trigger(svc, all)); err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return 0, nil
		}
		if !apierrors.IsConflict(err) {
			r.events.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
				"Error updating Endpoint Slices for Service %s/%s: %v", svc.Namespace, svc.Name, err)
		}
		return 0, err
	}
	return 0, nil
}

func (r *reconciler) have(svc *corev1.Service) (out []*discoveryv1.EndpointSlice, err error) {
	found, err := r.slices.ByIndex(byService, cache.MetaObjectToName(svc).String())
	for _, o := range found {
		if s := o.(*discoveryv1.EndpointSlice); s.DeletionTimestamp == nil && ownedBy(s, svc) {
			out = append(out, s)
		}
	}
	return out, err
}

func ownedBy(s *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	for _, ref := range s.OwnerReferences {
		if ref.UID == svc.UID {
			return true
		}
	}
	return false
}

func (r *reconciler) apply(ctx context.Context, key cache.ObjectName, c changes, trigger string) error {
	api := r.client.DiscoveryV1().EndpointSlices(key.Namespace)
	mark := func(s *discoveryv1.EndpointSlice) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[corev1.EndpointsLastChangeTriggerTime] = trigger
	}
	for _, s := range c.create {
		mark(s)
		made, err := api.Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		written.WithLabelValues("create").Inc()
		r.wrote.Wrote(key, r.slices, made)
	}
	for _, s := range c.update {
		mark(s)
		made, err := api.Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		written.WithLabelValues("update").Inc()
		r.wrote.Wrote(key, r.slices, made)
	}
	for _, s := range c.remove {
		if err := api.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		written.WithLabelValues("delete").Inc()
		r.wrote.Deleted(key, r.slices, s)
	}
	return nil
}
