package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// podResizeValidator refuses to resize a pod beyond what its node could ever
// give.
type podResizeValidator struct{ cache *watchcache.Cache }

func (*podResizeValidator) Name() string { return "PodResizeValidator" }

func (p *podResizeValidator) Validate(_ context.Context, a *admission.Attributes) error {
	pod, old := changedOnNode(a)
	if pod == nil || old == nil || a.Subresource != "resize" {
		return nil
	}
	node, err := nodeOf(p.cache, a, pod)
	if err != nil {
		return err
	}
	if os, ok := node.Labels[corev1.LabelOSStable]; ok && os != "linux" {
		return refuseResize(a, "UnsupportedPlatform", fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	if err := fits(pod, node.Status.Allocatable); err != nil {
		return refuseResize(a, "NodeCapacity", err)
	}
	return nil
}

// changedOnNode are a bound pod whose spec an update changes, and what it was.
// The generation tells.
func changedOnNode(a *admission.Attributes) (pod, old *corev1.Pod) {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation != admission.Update || a.Resource.Resource != "pods" || a.Resource.Group != "" || pod.Spec.NodeName == "" {
		return nil, nil
	}
	if old, ok = a.Old.(*corev1.Pod); !ok || old.Generation == pod.Generation {
		return nil, nil
	}
	return pod, old
}

func nodeOf(cache *watchcache.Cache, a *admission.Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	node, ok := watchcache.Read[*corev1.Node](cache.Resource(corev1.SchemeGroupVersion.WithResource("nodes")), pod.Spec.NodeName)
	if !ok {
		return nil, forbidden(a, fmt.Errorf("node %q not found", pod.Spec.NodeName))
	}
	return node, nil
}

func refuseResize(a *admission.Attributes, cause metav1.CauseType, err error) error {
	refusal := forbidden(a, err)
	if s := (*apierrors.StatusError)(nil); errors.As(refusal, &s) {
		s.ErrStatus.Details.Causes = append(s.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return refusal
}

// fits says what of a pod's requests is more than a whole node can give.
func fits(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var over []string
	if ask, have := requests.Cpu(), allocatable.Cpu(); ask.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("cpu, requested: %d, allocatable: %d", ask.MilliValue(), have.MilliValue()))
	}
	if ask, have := requests.Memory(), allocatable.Memory(); ask.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("memory, requested: %d, allocatable: %d", ask.Value(), have.Value()))
	}
	if len(over) == 0 {
		return nil
	}
	return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(over, "; "))
}
