package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// priority resolves a pod's priority class into its number, and keeps one
// default class at most.
type priority struct{ cache *watchcache.Cache }

func (*priority) Name() string { return "Priority" }

func (p *priority) classes() *watchcache.Resource {
	return p.cache.Resource(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"))
}

func (p *priority) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, "pods", "") {
		return nil
	}
	if a.Operation == admission.Update {
		// Writers that do not know of these fields must not clear them.
		if old, ok := a.Old.(*corev1.Pod); ok {
			if pod.Spec.Priority == nil && old.Spec.Priority != nil {
				pod.Spec.Priority = new(*old.Spec.Priority)
			}
			if pod.Spec.PreemptionPolicy == nil && old.Spec.PreemptionPolicy != nil {
				pod.Spec.PreemptionPolicy = new(*old.Spec.PreemptionPolicy)
			}
		}
		return nil
	}
	if a.Operation != admission.Create {
		return nil
	}
	class, err := p.of(ctx, pod.Spec.PriorityClassName)
	if err != nil {
		return forbidden(a, err)
	}
	value, policy := int32(0), corev1.PreemptLowerPriority
	if class != nil {
		value = class.Value
		pod.Spec.PriorityClassName = class.Name
		if class.PreemptionPolicy != nil {
			policy = *class.PreemptionPolicy
		}
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return forbidden(a, fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value))
	}
	pod.Spec.Priority = &value
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != policy {
		return forbidden(a, fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *pod.Spec.PreemptionPolicy, policy))
	}
	pod.Spec.PreemptionPolicy = &policy
	return nil
}

// of finds the class named, or the default one, nil when there is none.
func (p *priority) of(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	if name != "" {
		class, err := lookup[*schedulingv1.PriorityClass](ctx, p.cache, schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"), name, name)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("no PriorityClass with name %v was found", name)
		}
		return class, err
	}
	var found *schedulingv1.PriorityClass
	watchcache.Each(p.classes(), "", func(c *schedulingv1.PriorityClass) bool {
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
		return true
	})
	return found, nil
}

func (p *priority) Validate(_ context.Context, a *admission.Attributes) error {
	class, ok := a.Object.(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault || a.Operation != admission.Create && a.Operation != admission.Update {
		return nil
	}
	var err error
	watchcache.Each(p.classes(), "", func(c *schedulingv1.PriorityClass) bool {
		if c.GlobalDefault && c.Name != class.Name {
			err = forbidden(a, fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", c.Name))
		}
		return err == nil
	})
	return err
}
