// Package podspec answers what the kubelet asks of a pod's spec: which containers
// it has, which quality of service, what is restarted. It reads Pods and writes
// nothing.
package podspec

import corev1 "k8s.io/api/core/v1"

// IsSidecar says whether an init container stays while the pod runs.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// EachContainer calls f for init, regular and ephemeral containers in order.
func EachContainer(pod *corev1.Pod, f func(c *corev1.Container, kind ContainerKind)) {
	for i := range pod.Spec.InitContainers {
		f(&pod.Spec.InitContainers[i], InitContainer)
	}
	for i := range pod.Spec.Containers {
		f(&pod.Spec.Containers[i], MainContainer)
	}
	for i := range pod.Spec.EphemeralContainers {
		f((*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon), EphemeralContainer)
	}
}

// A ContainerKind is the list of a pod's spec that a container is in.
type ContainerKind int

// The kinds of containers.
const (
	MainContainer ContainerKind = iota
	InitContainer
	EphemeralContainer
)

// FindContainer is the container of that name, nil if the pod has none.
func FindContainer(pod *corev1.Pod, name string) (found *corev1.Container, kind ContainerKind) {
	EachContainer(pod, func(c *corev1.Container, k ContainerKind) {
		if c.Name == name {
			found, kind = c, k
		}
	})
	return found, kind
}

// UsedVolumes are the names of the volumes that some container has: nothing is done
// about others.
func UsedVolumes(pod *corev1.Pod) map[string]bool {
	used := map[string]bool{}
	EachContainer(pod, func(c *corev1.Container, _ ContainerKind) {
		for i := range c.VolumeMounts {
			used[c.VolumeMounts[i].Name] = true
		}
		for i := range c.VolumeDevices {
			used[c.VolumeDevices[i].Name] = true
		}
	})
	return used
}
