package criconfig

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/podspec"
)

// PodCgroup is the group of a pod, "" if they are left to the runtime.
func PodCgroup(parent string, pod *corev1.Pod) string {
	if parent == "-" {
		return ""
	}
	leaf := "pod" + string(pod.UID)
	switch podspec.QOS(pod) {
	case corev1.PodQOSBurstable:
		return cgroup.Child(cgroup.Child(parent, "burstable"), leaf)
	case corev1.PodQOSBestEffort:
		return cgroup.Child(cgroup.Child(parent, "besteffort"), leaf)
	}
	return cgroup.Child(parent, leaf)
}
