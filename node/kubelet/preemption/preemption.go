// Package preemption decides which pods have to go for a critical one to have room. It
// reads pods and writes nothing.
package preemption

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/node/kubelet/podspec"
)

// A Requirement is how much of a resource is missing: millicores of CPU.
type Requirement struct {
	Resource corev1.ResourceName
	Quantity int64
}

// Request is what a pod asks for of a resource, as requirements count it.
func Request(pod *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	q := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[name]
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// requirements are several of them.
type requirements []Requirement

// without is what is still missing once pods have gone.
func (r requirements) without(pods ...*corev1.Pod) (left requirements) {
	for _, one := range r {
		for _, p := range pods {
			one.Quantity -= Request(p, one.Resource)
		}
		if one.Quantity > 0 {
			left = append(left, one)
		}
	}
	return left
}

// distance is how far a pod's requests are from what is missing: 0 if it has it all.
func (r requirements) distance(pod *corev1.Pod) (sum float64) {
	for _, one := range r {
		if missing := float64(one.Quantity-Request(pod, one.Resource)) / float64(one.Quantity); missing > 0 {
			sum += missing * missing
		}
	}
	return sum
}

func (r requirements) String() string {
	var out []string
	for _, one := range r {
		out = append(out, fmt.Sprintf("(res: %v, q: %d), ", one.Resource, one.Quantity))
	}
	return "[" + strings.Join(out, "") + "]"
}

// smaller says whether a asks for less than b, of memory first.
func smaller(a, b *corev1.Pod) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		if x, y := Request(a, name), Request(b, name); x != y {
			return x < y
		}
	}
	return true
}

// nearest are the pods that make up for what is missing, as few as can be, by always
// taking that which is nearest to it.
func nearest(pods []*corev1.Pod, missing requirements) ([]*corev1.Pod, error) {
	pods = slices.Clone(pods)
	var out []*corev1.Pod
	for len(missing) > 0 {
		if len(pods) == 0 {
			return nil, fmt.Errorf("no set of running pods found to reclaim resources: %v", missing)
		}
		best, at := float64(len(missing)+1), 0
		for i, p := range pods {
			if d := missing.distance(p); d < best || d == best && smaller(p, pods[at]) {
				best, at = d, i
			}
		}
		missing = missing.without(pods[at])
		out = append(out, pods[at])
		pods = slices.Delete(pods, at, at+1)
	}
	return out, nil
}

// Victims are the pods that have to go, of the lowest class first. Before says whether
// the pod comes before another one.
func Victims(others []*corev1.Pod, missing []Requirement, before func(other *corev1.Pod) bool) ([]*corev1.Pod, error) {
	want := requirements(missing)
	var best, burst, guaranteed []*corev1.Pod
	for _, p := range others {
		if !before(p) {
			continue
		}
		switch podspec.QOS(p) {
		case corev1.PodQOSBestEffort:
			best = append(best, p)
		case corev1.PodQOSBurstable:
			burst = append(burst, p)
		default:
			guaranteed = append(guaranteed, p)
		}
	}
	if left := want.without(slices.Concat(best, burst, guaranteed)...); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %v", left)
	}
	third, err := nearest(guaranteed, want.without(slices.Concat(best, burst)...))
	if err != nil {
		return nil, err
	}
	second, err := nearest(burst, want.without(slices.Concat(best, third)...))
	if err != nil {
		return nil, err
	}
	first, err := nearest(best, want.without(slices.Concat(second, third)...))
	if err != nil {
		return nil, err
	}
	return slices.Concat(first, second, third), nil
}
