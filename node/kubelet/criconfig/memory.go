package criconfig

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// pageSize is what memory.high is a multiple of.
const pageSize = 4096

// swap says how much swap a container may use: none, unless the node lets Burstable pods
// have a part of it, which is that of their request in the node's memory.
func (n Node) swap(pod *corev1.Pod, c *corev1.Container) int64 {
	request := c.Resources.Requests.Memory()
	if !n.Swaps(pod, c) || n.Memory <= 0 || request.IsZero() || request.Value() > n.Memory {
		return 0
	}
	return int64(float64(request.Value()) / float64(n.Memory) * float64(n.Swap))
}

// Swaps says whether a container may use swap at all.
func (n Node) Swaps(pod *corev1.Pod, c *corev1.Container) bool {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	return n.LimitedSwap && !podspec.IsCritical(pod) && podspec.QOS(pod) == corev1.PodQOSBurstable && request.Cmp(*limit) != 0
}

// high is the memory from which a container is slowed down: between its request and its
// limit, or what the node has for pods; 0 for none.
func (n Node) high(c *corev1.Container) int64 {
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	if n.Throttling == 0 || request == limit {
		return 0
	}
	if limit == 0 {
		limit = n.AllocatableMemory
	}
	high := int64(math.Floor((float64(request)+float64(limit-request)*n.Throttling)/pageSize)) * pageSize
	if limit == 0 || high <= request {
		return 0
	}
	return high
}

// unified sets what only control groups of version 2 have.
func (n Node) unified(r *cri.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container) {
	if !n.CgroupV2 {
		return
	}
	r.Unified = map[string]string{}
	if !n.SingleOOMKill {
		r.Unified["memory.oom.group"] = "1" // one process running out of memory ends the container, as on v1
	}
	if n.SwapControl {
		r.Unified["memory.swap.max"] = strconv.FormatInt(n.swap(pod, c), 10)
	}
	if n.Throttling == 0 {
		return
	}
	if high := n.high(c); high > 0 {
		r.Unified["memory.high"] = strconv.FormatInt(high, 10)
	}
	switch least, low := n.reserved(pod, c.Resources.Requests.Memory().Value()); {
	case least > 0:
		r.Unified["memory.min"] = strconv.FormatInt(least, 10)
	case low > 0:
		r.Unified["memory.low"] = strconv.FormatInt(low, 10)
	default:
		r.Unified["memory.min"], r.Unified["memory.low"] = "0", "0"
	}
}

// reserved is what of a request the kernel never takes, as of Guaranteed pods, or takes last.
func (n Node) reserved(pod *corev1.Pod, request int64) (least, low int64) {
	switch {
	case !n.ReserveMemory:
		return 0, 0
	case podspec.QOS(pod) == corev1.PodQOSGuaranteed:
		return request, 0
	}
	return 0, request
}

// ReservedMemory is the same of a pod as a whole.
func (n Node) ReservedMemory(pod *corev1.Pod) (least, low int64) {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return n.reserved(pod, requests.Memory().Value())
}
