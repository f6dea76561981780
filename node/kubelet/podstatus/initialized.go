package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

// initialized says whether the pod came past its init containers.
func initialized(pod *corev1.Pod, all []corev1.ContainerStatus, phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	var unknown, incomplete []string
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		s := FindContainer(all, spec.Name)
		switch {
		case s == nil:
			unknown = append(unknown, spec.Name)
		case podspec.IsSidecar(spec) && (s.Started == nil || !*s.Started), !podspec.IsSidecar(spec) && !s.Ready:
			incomplete = append(incomplete, spec.Name)
		}
	}
	if phase == corev1.PodSucceeded && len(unknown) == 0 {
		c.Reason = "PodCompleted"
		return c
	}
	for i := range pod.Spec.Containers {
		if s := FindContainer(all, pod.Spec.Containers[i].Name); s != nil && (s.State.Running != nil || s.State.Terminated != nil && !endedWithPod(*s)) {
			return c // its init containers may be beginning anew
		}
	}
	if len(unknown)+len(incomplete) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ContainersNotInitialized", containersMessage(unknown, incomplete, "incomplete")
	}
	return c
}
