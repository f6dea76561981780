package podstatus

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/node/kubelet/criconfig"
)

// minCPU is the least request, and minCPULimit the least limit of CPU, in thousandths,
// that a cgroup can tell: less is shown as it was asked for.
const minCPU, minCPULimit = 2, 10

// setPodResources sets the resources that the pod was given as a whole and those that
// it has, which during a resize are not yet the same.
func setPodResources(in Input, s *corev1.PodStatus) {
	requests, limits := criconfig.PodLimits(in.Pod)
	s.AllocatedResources = requests
	switch {
	case s.Phase != corev1.PodRunning:
		s.Resources = requirements(in.Pod)
		s.Resources.Requests = maps.Clone(requests)
		s.Resources.Limits = resourcehelper.PodLimits(in.Pod, resourcehelper.PodResourcesOptions{})
	case in.Resizing != nil && in.Old.Resources != nil && in.Old.Phase == s.Phase:
		s.Resources = in.Old.Resources
	default:
		s.Resources = groupResources(in.Pod, requests, limits)
	}
}

// requirements is a copy of what the spec says of the pod as a whole.
func requirements(pod *corev1.Pod) *corev1.ResourceRequirements {
	if pod.Spec.Resources == nil {
		return &corev1.ResourceRequirements{}
	}
	return pod.Spec.Resources.DeepCopy()
}

// groupResources are those of the pod's cgroup, which has these requests and limits.
func groupResources(pod *corev1.Pod, requests, limits corev1.ResourceList) *corev1.ResourceRequirements {
	out := requirements(pod)
	set := func(in *corev1.ResourceList, from corev1.ResourceList, name corev1.ResourceName, least int64) {
		q, ok := from[name]
		if _, given := (*in)[name]; !ok || given || least > 0 && q.MilliValue() <= least {
			return
		}
		if *in == nil {
			*in = corev1.ResourceList{}
		}
		(*in)[name] = q
	}
	set(&out.Requests, requests, corev1.ResourceCPU, minCPU)
	set(&out.Requests, requests, corev1.ResourceMemory, 0)
	set(&out.Limits, limits, corev1.ResourceCPU, minCPULimit)
	set(&out.Limits, limits, corev1.ResourceMemory, 0)
	return out
}
