package podspec

import corev1 "k8s.io/api/core/v1"

// ConfigSource is the annotation in which the kubelet notes where a pod comes from:
// api, file or http.
const ConfigSource = "kubernetes.io/config.source"

// IsStatic says whether a pod comes from a manifest of the node's own.
func IsStatic(pod *corev1.Pod) bool {
	from, ok := pod.Annotations[ConfigSource]
	return ok && from != "api"
}
