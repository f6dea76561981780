package criconfig

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

// oomScore is the oom_score_adj of a container: the higher, the sooner the
// kernel ends it when the node is out of memory.
func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= 2000000000 {
		return -997
	}
	switch podspec.QOS(pod) {
	case corev1.PodQOSGuaranteed:
		return -997
	case corev1.PodQOSBestEffort:
		return 1000
	}
	mem := c.Resources.Requests[corev1.ResourceMemory]
	score := int64(1000)
	if capacity > 0 {
		score = 1000 - 1000*mem.Value()/capacity
	}
	return min(max(score, 3), 999)
}
