// Package servicecidrs is the service-cidr-controller. It reads ServiceCIDRs and
// IPAddresses, and writes the ServiceCIDRs' condition Ready and the finalizer that
// keeps a range for as long as addresses of Services come from it alone.
package servicecidrs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "service-cidr-controller"

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// allocator is the manager of the addresses that API servers allocate.
	allocator = "ipallocator.k8s.io"
	// deletionGrace is how long API servers may take to see that a range is being
	// deleted: until then they may allocate from it.
	deletionGrace = 10 * time.Second

	readyMessage       = "Kubernetes Service CIDR is ready"
	terminatingMessage = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

type reconciler struct {
	ranges, addresses cache.Indexer
	client            kubernetes.Interface
	events            record.EventRecorder
}

// New returns the controller; its keys are names of ServiceCIDRs.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) *controller.Controller[string] {
	ranges, addresses := f.Networking().V1().ServiceCIDRs().Informer(), f.Networking().V1().IPAddresses().Informer()
	r := &reconciler{ranges.GetIndexer(), addresses.GetIndexer(), client, events}
	return &controller.Controller[string]{
		Name: Name,
		Sources: []controller.Source[string]{
			{Informer: ranges, Keys: r.affected},
			{Informer: addresses, Keys: r.waiting},
		},
		Reconcile: r.reconcile,
	}
}

// affected are the range itself and those being deleted, which a change of another
// range may let go of.
func (r *reconciler) affected(o metav1.Object) []string {
	return append(r.terminating(), o.GetName())
}

// waiting are the ranges being deleted, if the address was allocated.
func (r *reconciler) waiting(o metav1.Object) []string {
	if o.GetLabels()[networkingv1.LabelManagedBy] != allocator {
		return nil
	}
	return r.terminating()
}

func (r *reconciler) terminating() (names []string) {
	for _, c := range r.all() {
		if c.DeletionTimestamp != nil {
			names = append(names, c.Name)
		}
	}
	return names
}

func (r *reconciler) all() []*networkingv1.ServiceCIDR {
	var all []*networkingv1.ServiceCIDR
	for _, o := range r.ranges.List() {
		all = append(all, o.(*networkingv1.ServiceCIDR))
	}
	return all
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.ranges.GetByKey(name)
	if err != nil || !ok {
		return 0, err
	}
	c := obj.(*networkingv1.ServiceCIDR)
	if c.DeletionTimestamp == nil {
		return 0, r.makeReady(ctx, c)
	}
	free, err := r.free(ctx, c)
	if err != nil {
		return 0, err
	}
	if !free {
		return 0, r.setReady(ctx, c, metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating, terminatingMessage)
	}
	if wait := deletionGrace - time.Since(c.DeletionTimestamp.Time); wait > 0 {
		return wait, nil
	}
	if !slices.Contains(c.Finalizers, finalizer) {
		return 0, nil
	}
	return 0, r.patch(ctx, c, map[string]any{"$deleteFromPrimitiveList/finalizers": []string{finalizer}})
}

func (r *reconciler) makeReady(ctx context.Context, c *networkingv1.ServiceCIDR) error {
	if !slices.Contains(c.Finalizers, finalizer) {
		if err := r.patch(ctx, c, map[string]any{"finalizers": []string{finalizer}}); err != nil {
			return err
		}
	}
	if meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		return nil
	}
	err := r.setReady(ctx, c, metav1.ConditionTrue, "", readyMessage)
	if err != nil {
		r.events.Eventf(c, corev1.EventTypeWarning, "KubernetesServiceCIDRError", "The ServiceCIDR Status can not be set to Ready=True")
	}
	return err
}

// free says whether the range can go: where no other range contains the same
// addresses, none may be in use. The cache may be behind, so the server is asked
// before it answers yes.
func (r *reconciler) free(ctx context.Context, c *networkingv1.ServiceCIDR) (bool, error) {
	others := slices.DeleteFunc(r.all(), func(o *networkingv1.ServiceCIDR) bool { return o.Name == c.Name })
	if covered(c, others) {
		return true, nil
	}
	for _, o := range r.addresses.List() {
		if orphans(c, others, o.(*networkingv1.IPAddress)) {
			return false, nil
		}
	}
	live, err := r.client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{LabelSelector: networkingv1.LabelManagedBy + "=" + allocator})
	if err != nil {
		return false, fmt.Errorf("list IPAddresses: %w", err)
	}
	for i := range live.Items {
		if orphans(c, others, &live.Items[i]) {
			return false, nil
		}
	}
	return true, nil
}

// prefixes are the ranges of c that can be read.
func prefixes(c *networkingv1.ServiceCIDR) (all []netip.Prefix) {
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// covered says whether each range of c lies within one of the others. Pure.
func covered(c *networkingv1.ServiceCIDR, others []*networkingv1.ServiceCIDR) bool {
	return !slices.ContainsFunc(prefixes(c), func(p netip.Prefix) bool {
		return !slices.ContainsFunc(others, func(o *networkingv1.ServiceCIDR) bool {
			return slices.ContainsFunc(prefixes(o), func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
		})
	})
}

// orphans says whether the address would be in no range without c. Pure.
func orphans(c *networkingv1.ServiceCIDR, others []*networkingv1.ServiceCIDR, ip *networkingv1.IPAddress) bool {
	addr, err := netip.ParseAddr(ip.Name)
	if err != nil || ip.Labels[networkingv1.LabelManagedBy] != allocator {
		return false
	}
	has := func(c *networkingv1.ServiceCIDR) bool {
		return slices.ContainsFunc(prefixes(c), func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	return has(c) && !slices.ContainsFunc(others, has)
}

// patch changes c's metadata.
func (r *reconciler) patch(ctx context.Context, c *networkingv1.ServiceCIDR, change map[string]any) error {
	change["uid"] = c.UID // not a later one's of that name
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return err
	}
	_, err = r.client.NetworkingV1().ServiceCIDRs().Patch(ctx, c.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// setReady writes the condition Ready, unless it says so already.
func (r *reconciler) setReady(ctx context.Context, c *networkingv1.ServiceCIDR, status metav1.ConditionStatus, reason, message string) error {
	have := meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	if have != nil && have.Status == status && have.Reason == reason {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": networkingv1.SchemeGroupVersion.String(), "kind": "ServiceCIDR", "metadata": map[string]any{"name": c.Name, "uid": c.UID},
		"status": networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}}},
	})
	if err != nil {
		return err
	}
	_, err = r.client.NetworkingV1().ServiceCIDRs().Patch(ctx, c.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: Name, Force: new(true)}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
