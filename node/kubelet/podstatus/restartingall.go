package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

// removedForAll says whether what the runtime no longer has was removed for all to
// begin anew: they do now, or did when the last status was made.
func removedForAll(in Input) bool {
	c := FindCondition(in.Old.Conditions, corev1.AllContainersRestarting)
	return in.anew || c != nil && c.Status == corev1.ConditionTrue
}

// restartingAll is the condition of a pod that may restart all containers.
func restartingAll(in Input, phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case phase == corev1.PodFailed:
		c.Reason = "PodFailed"
	case in.anew:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule"
	}
	return c
}

// removedStatus is the status of a container that was removed for all to begin anew.
func removedStatus(in Input, spec *corev1.Container, old *corev1.ContainerStatus, kind podspec.ContainerKind) corev1.ContainerStatus {
	const message = "The container is removed because RestartAllContainers in place"
	s := initialStatus(in, spec, kind)
	s.RestartCount = old.RestartCount + 1
	s.State.Waiting = &corev1.ContainerStateWaiting{Reason: podspec.ReasonRestartingAll, Message: message}
	s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: podspec.ReasonRestartingAll, Message: message, ExitCode: 137}
	return s
}
