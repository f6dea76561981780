package podspec

import corev1 "k8s.io/api/core/v1"

// Format is how events and messages name a pod.
func Format(pod *corev1.Pod) string {
	return pod.Name + "_" + pod.Namespace + "(" + string(pod.UID) + ")"
}
