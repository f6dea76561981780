package podspec

import (
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// NetworkMode is the network namespace of a pod: its own or the node's.
func NetworkMode(pod *corev1.Pod) cri.NamespaceMode {
	if pod.Spec.HostNetwork {
		return cri.NamespaceMode_NODE
	}
	return cri.NamespaceMode_POD
}
