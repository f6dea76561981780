// Package servicelb is the service-lb-controller. It reads Services and Nodes; it has
// the cloud provider make, change and delete load balancers, and writes the finalizer
// and the status of Services of the type LoadBalancer.
package servicelb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/controlplane/cloudcontrollermanager/metrics"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "service-lb-controller"

const (
	leastRetry, mostRetry = 5 * time.Second, 5 * time.Minute
	// callTime is how long the provider may take for one change of a load balancer.
	callTime = 30 * time.Minute
)

type reconciler struct {
	services cache.Indexer
	hosts    hosts
	client   kubernetes.Interface
	events   record.EventRecorder
	balancer cloudprovider.LoadBalancer
	cluster  string
	metrics  *metrics.Metrics

	mu sync.Mutex
	// applied is what the provider has seen, by Service.
	applied map[cache.ObjectName]*applied
}

// New returns the controller. cluster is the name by which the provider knows the
// cluster.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, balancer cloudprovider.LoadBalancer, cluster string, m *metrics.Metrics) *controller.Controller[cache.ObjectName] {
	services, nodes := f.Core().V1().Services().Informer(), f.Core().V1().Nodes().Informer()
	r := &reconciler{
		services: services.GetIndexer(), client: client, events: events, balancer: balancer, cluster: cluster, metrics: m,
		hosts:   hosts{nodes: nodes.GetIndexer(), known: map[string]host{}},
		applied: map[cache.ObjectName]*applied{},
	}
	return &controller.Controller[cache.ObjectName]{
		Name:       Name,
		RetryDelay: [2]time.Duration{leastRetry, mostRetry},
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(services),
			{Informer: nodes, Keys: r.balanced},
		},
		Reconcile: r.reconcile,
	}
}

// balanced are the Services with load balancers, if they must send elsewhere now.
func (r *reconciler) balanced(o metav1.Object) (keys []cache.ObjectName) {
	if !r.hosts.changed(o) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.applied {
		keys = append(keys, key)
	}
	return keys
}

func (r *reconciler) last(key cache.ObjectName) *applied {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.applied[key]
}

// note keeps what the provider has seen; nil: nothing.
func (r *reconciler) note(key cache.ObjectName, a *applied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == nil {
		delete(r.applied, key)
		return
	}
	r.applied[key] = a
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.services.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	service, _ := obj.(*corev1.Service)
	last := r.last(key)
	if last != nil && (!ok || last.service.UID != service.UID) {
		if err := r.vanished(ctx, key, last.service); err != nil {
			return 0, err
		}
		last = nil
	}
	if !ok {
		return 0, nil
	}
	switch plan(service, last, r.hosts.now()) {
	case ensure:
		err = r.report(service, r.ensure(ctx, key, service))
	case update:
		err = r.update(ctx, key, last)
	case cleanUp:
		err = r.report(service, r.cleanUp(ctx, key, service))
	}
	if now := r.last(key); err == nil && now != nil && now.ensured && now.round != r.hosts.now() {
		return time.Millisecond, nil // nodes changed before the key was noted
	}
	return 0, err
}

// report records an error with the Service, for its user.
func (r *reconciler) report(service *corev1.Service, err error) error {
	if err != nil && !apierrors.IsConflict(err) && !errors.Is(err, context.Canceled) {
		r.events.Eventf(service, corev1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: %v", err)
	}
	return err
}

// vanished deletes the load balancer of a Service that is gone, although its
// finalizer was to keep it. The cache may be behind: the server is asked.
func (r *reconciler) vanished(ctx context.Context, key cache.ObjectName, service *corev1.Service) error {
	live, err := r.client.CoreV1().Services(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err == nil && live.UID == service.UID {
		return fmt.Errorf("service %s is not in the cache, but on the server", key)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read service %s before its load balancer is deleted: %w", key, err)
	}
	if wants(service) {
		r.events.Event(service, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
		if err := r.delete(ctx, service); err != nil {
			r.events.Eventf(service, corev1.EventTypeWarning, "DeleteLoadBalancerFailed", "Error deleting load balancer: %v", err)
			return err
		}
		r.events.Event(service, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	}
	r.note(key, nil)
	return nil
}

// delete forgives that others implement the load balancer.
func (r *reconciler) delete(ctx context.Context, service *corev1.Service) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r.metrics.BalancerSyncs.Inc()
	err := r.balancer.EnsureLoadBalancerDeleted(ctx, r.cluster, service.DeepCopy())
	if errors.Is(err, cloudprovider.ImplementedElsewhere) {
		return nil
	}
	return err
}
