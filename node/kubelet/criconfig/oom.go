package criconfig

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/node/kubelet/podspec"
)

// The scores of pods that are the last and the first to go.
const (
	guaranteedScore = -997
	bestEffortScore = 1000
)

// oomScore is the oom_score_adj of a container: the higher, the sooner the kernel ends it
// when the node, of so many bytes, is out of memory. Between the extremes it falls with the
// container's request and its share of what only the pod requests; a sidecar's is at most
// that of the pod's container with the least request. The rule is pkg/kubelet/qos's.
func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if pod.Spec.PriorityClassName == "system-node-critical" && podspec.IsCritical(pod) {
		return guaranteedScore
	}
	switch podspec.QOS(pod) {
	case corev1.PodQOSGuaranteed:
		return guaranteedScore
	case corev1.PodQOSBestEffort:
		return bestEffortScore
	}
	request := c.Resources.Requests.Memory().Value()
	if podspec.IsSidecar(c) {
		least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		request = max(request, least)
	}
	score := int64(bestEffortScore)
	if capacity > 0 {
		score -= 1000 * (request + sharedRequest(pod)) / capacity
	}
	return min(max(score, bestEffortScore+guaranteedScore), bestEffortScore-1)
}

// sharedRequest is what the pod requests of memory beyond its containers, by container.
func sharedRequest(pod *corev1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	named := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	beyond := pod.Spec.Resources.Requests.Memory().Value() - named.Memory().Value()
	return beyond / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}
