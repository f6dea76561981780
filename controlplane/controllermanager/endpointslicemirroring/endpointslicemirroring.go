// Package endpointslicemirroring is the endpointslice-mirroring-controller. It
// reads Services without a selector and their Endpoints, which users write, and
// writes EndpointSlices that say the same.
package endpointslicemirroring

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/internal/controller"
	"knarr/internal/informer"
)

// Name is the controller's.
const Name = "endpointslice-mirroring-controller"

// manager marks this controller's slices.
const manager = "endpointslicemirroring-controller.k8s.io"

// byEndpoints is the index of slices by the Endpoints they mirror.
const byEndpoints = "knarr.mirrored"

type reconciler struct {
	services, endpoints, slices cache.Indexer
	client                      kubernetes.Interface
	events                      record.EventRecorder
	wrote                       *ownwrites.Log
	perSubset                   int
}

// Config is what is mirrored, and when. A zero value means its default.
type Config struct {
	// MaxEndpointsPerSubset is the most addresses of one list of ports that are
	// mirrored. Default 1000.
	MaxEndpointsPerSubset int
	// UpdatesBatchPeriod is how long changes of Endpoints are gathered. Default 0.
	UpdatesBatchPeriod time.Duration
}

// New returns the controller; its keys are Endpoints.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, cfg Config) (*controller.Controller[cache.ObjectName], error) {
	services, endpoints := f.Core().V1().Services().Informer(), f.Core().V1().Endpoints().Informer()
	slices := f.Discovery().V1().EndpointSlices().Informer()
	err := informer.Index(slices, cache.Indexers{byEndpoints: func(obj any) (keys []string, _ error) {
		for _, key := range mirrored(obj.(metav1.Object)) {
			keys = append(keys, key.String())
		}
		return keys, nil
	}})
	if err != nil {
		return nil, err
	}
	r := &reconciler{services.GetIndexer(), endpoints.GetIndexer(), slices.GetIndexer(), client, events, ownwrites.New(), cmp.Or(cfg.MaxEndpointsPerSubset, 1000)}
	gathered := controller.Self(endpoints)
	gathered.Delay = cfg.UpdatesBatchPeriod
	return &controller.Controller[cache.ObjectName]{
		Name:       Name,
		Workers:    5,
		RetryDelay: [2]time.Duration{0, 100 * time.Second}, // upstream's longest
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(services),
			gathered,
			{Informer: slices, Keys: mirrored},
		},
		Reconcile: r.reconcile,
	}, nil
}

// mirrored names the Endpoints of a slice of this controller.
func mirrored(o metav1.Object) []cache.ObjectName {
	name := o.GetLabels()[discoveryv1.LabelServiceName]
	if name == "" || o.GetLabels()[discoveryv1.LabelManagedBy] != manager {
		return nil
	}
	return []cache.ObjectName{cache.NewObjectName(o.GetNamespace(), name)}
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if !r.wrote.Seen(key) {
		return time.Minute, nil // events come before
	}
	began := time.Now()
	defer func() { syncTook.Observe(time.Since(began).Seconds()) }()
	var have []*discoveryv1.EndpointSlice
	found, err := r.slices.ByIndex(byEndpoints, key.String())
	if err != nil {
		return 0, err
	}
	for _, o := range found {
		if s := o.(*discoveryv1.EndpointSlice); s.DeletionTimestamp == nil {
			have = append(have, s)
		}
	}
	ep, err := r.toMirror(key)
	if err != nil {
		return 0, err
	}
	if ep == nil {
		r.wrote.Forget(key)
		return 0, r.apply(ctx, key, changes{remove: have})
	}
	c := plan(ep, have, r.perSubset)
	if ep.DeletionTimestamp != nil {
		c.create = nil
	}
	skipped.Observe(float64(c.invalid + c.over))
	if c.invalid > 0 {
		r.events.Eventf(ep, corev1.EventTypeWarning, "InvalidIPAddress", "Skipped %d invalid IP addresses when mirroring to EndpointSlices", c.invalid)
	}
	if c.over > 0 {
		r.events.Eventf(ep, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", r.perSubset, c.invalid+c.over)
	}
	err = r.apply(ctx, key, c)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = nil
	}
	return 0, err
}

// toMirror is the Endpoints of that name, or nil if it is not to be mirrored:
// its author says so, it is a lock, or a selector of its Service says who the
// endpoints are.
func (r *reconciler) toMirror(key cache.ObjectName) (*corev1.Endpoints, error) {
	obj, ok, err := r.endpoints.GetByKey(key.String())
	if err != nil || !ok {
		return nil, err
	}
	ep := obj.(*corev1.Endpoints)
	if _, lock := ep.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]; lock || ep.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil, nil
	}
	svc, ok, err := r.services.GetByKey(key.String())
	if err != nil || !ok || svc.(*corev1.Service).Spec.Selector != nil {
		return nil, err
	}
	return ep, nil
}

func (r *reconciler) apply(ctx context.Context, key cache.ObjectName, c changes) error {
	api := r.client.DiscoveryV1().EndpointSlices(key.Namespace)
	for _, s := range c.create {
		made, err := api.Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create slice: %w", err)
		}
		written.WithLabelValues("create").Inc()
		r.wrote.Wrote(key, r.slices, made)
	}
	for _, s := range c.update {
		made, err := api.Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update slice %s: %w", s.Name, err)
		}
		written.WithLabelValues("update").Inc()
		r.wrote.Wrote(key, r.slices, made)
	}
	for _, s := range c.remove {
		if err := api.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete slice %s: %w", s.Name, err)
		}
		written.WithLabelValues("delete").Inc()
		r.wrote.Deleted(key, r.slices, s)
	}
	return nil
}
