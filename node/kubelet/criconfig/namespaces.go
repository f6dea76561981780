package criconfig

import (
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// namespaces are those of a pod's containers. One with the node's users says nothing of
// them: a sandbox that an earlier version made would not match.
func namespaces(pod *corev1.Pod, users *cri.UserNamespace) *cri.NamespaceOption {
	n := &cri.NamespaceOption{Network: podspec.NetworkMode(pod), Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: users}
	switch {
	case pod.Spec.HostPID:
		n.Pid = cri.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = cri.NamespaceMode_POD
	}
	if pod.Spec.HostIPC {
		n.Ipc = cri.NamespaceMode_NODE
	}
	return n
}
