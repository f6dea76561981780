package podspec

import corev1 "k8s.io/api/core/v1"

// SystemCritical is the priority from which pods are critical.
const SystemCritical = 2000000000

// IsCritical says whether a node needs the pod more than others: it is the node's own, or
// has such a priority.
func IsCritical(pod *corev1.Pod) bool {
	return IsStatic(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= SystemCritical
}
