package servicelb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
)

// ensure has the load balancer made, once the finalizer is on the Service: without
// it the Service could go and leave the balancer.
func (r *reconciler) ensure(ctx context.Context, key cache.ObjectName, service *corev1.Service) error {
	r.events.Event(service, corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer")
	held, err := r.hold(ctx, service)
	if err != nil {
		return fmt.Errorf("failed to add load balancer cleanup finalizer: %w", err)
	}
	if held == nil {
		return nil // gone or going: its event will come
	}
	round := r.hosts.now()
	nodes, as := r.hosts.list()
	if len(nodes) == 0 {
		r.events.Event(service, corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
	}
	// Noted before the call: the balancer may be there although the call fails.
	r.note(key, &applied{service: service})
	limited, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r.metrics.BalancerSyncs.Inc()
	status, err := r.balancer.EnsureLoadBalancer(limited, r.cluster, held.DeepCopy(), nodes)
	elsewhere := errors.Is(err, cloudprovider.ImplementedElsewhere)
	switch {
	case elsewhere:
	case err != nil:
		return fmt.Errorf("failed to ensure load balancer: %w", err)
	case status == nil:
		return errors.New("service status returned by EnsureLoadBalancer is nil")
	default:
		r.events.Event(service, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
		if err := r.writeStatus(ctx, held, status); err != nil {
			return fmt.Errorf("failed to update load balancer status: %w", err)
		}
	}
	r.note(key, &applied{service, true, as, round})
	return nil
}

// update gives a load balancer the nodes that it should send to.
func (r *reconciler) update(ctx context.Context, key cache.ObjectName, last *applied) error {
	began := time.Now()
	round := r.hosts.now()
	nodes, as := r.hosts.list()
	next := &applied{last.service, true, as, round}
	if slices.Equal(as, last.nodes) {
		r.note(key, next)
		return nil
	}
	defer func() { r.metrics.HostsSync.Observe(time.Since(began).Seconds()) }()
	if err := r.updateHosts(ctx, last.service, nodes); err != nil {
		r.metrics.HostsErrors.Inc()
		next.ensured = false // made anew as a whole
		r.note(key, next)
		return err
	}
	r.note(key, next)
	return nil
}

func (r *reconciler) updateHosts(ctx context.Context, service *corev1.Service, nodes []*corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	began := time.Now()
	r.metrics.BalancerSyncs.Inc()
	err := r.balancer.UpdateLoadBalancer(ctx, r.cluster, service.DeepCopy(), nodes)
	r.metrics.HostsUpdate.Observe(time.Since(began).Seconds())
	switch {
	case errors.Is(err, cloudprovider.ImplementedElsewhere):
		return nil
	case err == nil && len(nodes) == 0:
		r.events.Event(service, corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
		return nil
	case err == nil:
		r.events.Event(service, corev1.EventTypeNormal, "UpdatedLoadBalancer", "Updated load balancer with new hosts")
		return nil
	}
	if _, exists, existsErr := r.balancer.GetLoadBalancer(ctx, r.cluster, service.DeepCopy()); existsErr == nil && !exists {
		return nil // nothing to send anywhere
	}
	r.events.Eventf(service, corev1.EventTypeWarning, "UpdateLoadBalancerFailed",
		"Error updating load balancer with new hosts %s [node names limited, total number of nodes: %d], error: %v", shown(nodes), len(nodes), err)
	return fmt.Errorf("failed to update load balancer hosts for service %s/%s: %w", service.Namespace, service.Name, err)
}

// cleanUp deletes the load balancer, and then lets the Service go.
func (r *reconciler) cleanUp(ctx context.Context, key cache.ObjectName, service *corev1.Service) error {
	limited, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, exists, err := r.balancer.GetLoadBalancer(limited, r.cluster, service.DeepCopy())
	if err != nil {
		return fmt.Errorf("failed to check if load balancer exists before cleanup: %w", err)
	}
	if exists {
		r.events.Event(service, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
		if err := r.delete(ctx, service); err != nil {
			return fmt.Errorf("failed to delete load balancer: %w", err)
		}
	}
	if err := r.writeStatus(ctx, service, &corev1.LoadBalancerStatus{}); err != nil {
		return fmt.Errorf("failed to update load balancer status: %w", err)
	}
	if err := r.release(ctx, service); err != nil {
		return fmt.Errorf("failed to remove load balancer cleanup finalizer: %w", err)
	}
	r.events.Event(service, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	r.note(key, nil)
	return nil
}

// hold puts the finalizer on the Service, and gives the Service as it is then; nil
// if it is gone, being deleted, or another one.
func (r *reconciler) hold(ctx context.Context, service *corev1.Service) (*corev1.Service, error) {
	if slices.Contains(service.Finalizers, finalizer) {
		return service, nil
	}
	got, err := r.patch(ctx, service, types.StrategicMergePatchType, map[string]any{"metadata": map[string]any{"uid": service.UID, "finalizers": []string{finalizer}}})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, r.unlessGone(ctx, service, err)
	case got.DeletionTimestamp != nil:
		return nil, nil
	}
	return got, nil
}

// unlessGone forgives an error about a Service that is being deleted, gone, or
// another one by now.
func (r *reconciler) unlessGone(ctx context.Context, service *corev1.Service, err error) error {
	live, getErr := r.client.CoreV1().Services(service.Namespace).Get(ctx, service.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(getErr) || getErr == nil && (live.UID != service.UID || live.DeletionTimestamp != nil) {
		return nil
	}
	return err
}

// release takes the finalizer off, and nobody else's.
func (r *reconciler) release(ctx context.Context, service *corev1.Service) error {
	if !slices.Contains(service.Finalizers, finalizer) {
		return nil
	}
	_, err := r.patch(ctx, service, types.StrategicMergePatchType, map[string]any{"metadata": map[string]any{"uid": service.UID, "$deleteFromPrimitiveList/finalizers": []string{finalizer}}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// writeStatus says where the load balancer is.
func (r *reconciler) writeStatus(ctx context.Context, service *corev1.Service, status *corev1.LoadBalancerStatus) error {
	if equality.Semantic.DeepEqual(service.Status.LoadBalancer.Ingress, status.Ingress) {
		return nil
	}
	_, err := r.patch(ctx, service, types.MergePatchType, map[string]any{
		"metadata": map[string]any{"uid": service.UID},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": status.Ingress}},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patch writes to the Service as it was read, not to another of its name.
func (r *reconciler) patch(ctx context.Context, service *corev1.Service, kind types.PatchType, change map[string]any) (*corev1.Service, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return r.client.CoreV1().Services(service.Namespace).Patch(ctx, service.Name, kind, body, metav1.PatchOptions{}, "status")
}
