package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

// notLocated is the message of a container that had not ended when its pod had.
const notLocated = "The container could not be located when the pod was terminated"

// endContainers ends with their pod the containers that are not shown as ended: those that
// never began, wait for their next start, or are lost. As nobody knows how they ended, they
// failed. Only their states change: a phase and conditions that were made before still say
// how far the pod came.
func endContainers(in Input, s *corev1.PodStatus) {
	if !in.Terminal {
		return
	}
	if initializedBefore(in, s) {
		endEach(s.ContainerStatuses)
	}
	endEach(s.InitContainerStatuses[:attempted(s.InitContainerStatuses)])
}

func endEach(all []corev1.ContainerStatus) {
	for i := range all {
		if all[i].State.Terminated == nil {
			all[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "ContainerStatusUnknown", Message: notLocated, ExitCode: 137,
			}}
		}
	}
}

// initializedBefore says whether the pod came past its init containers before it ended. A
// sidecar shows that only while it runs, which is why earlier statuses count too. Of a static
// pod upstream asks its manifest, which says nothing.
func initializedBefore(in Input, s *corev1.PodStatus) bool {
	if len(in.Pod.Spec.InitContainers) == 0 {
		return true
	}
	return !podspec.IsStatic(in.Pod) && slices.ContainsFunc([]*corev1.PodStatus{s, in.Old, in.API}, func(s *corev1.PodStatus) bool {
		return showsInitialized(in.Pod, s)
	})
}

// showsInitialized says whether a status shows a regular container that has begun, or the last
// init container done or, if it is a sidecar, started.
func showsInitialized(pod *corev1.Pod, s *corev1.PodStatus) bool {
	if slices.ContainsFunc(s.ContainerStatuses, hasRun) {
		return true
	}
	last := &pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
	is := FindContainer(s.InitContainerStatuses, last.Name)
	if is == nil {
		return false
	}
	if podspec.IsSidecar(last) {
		return is.State.Running != nil && is.Started != nil && *is.Started
	}
	return endedWell(is.State) || endedWell(is.LastTerminationState)
}

func endedWell(s corev1.ContainerState) bool {
	return s.Terminated != nil && s.Terminated.ExitCode == 0
}

// hasRun says whether a status shows that the container ran, at least once.
func hasRun(s corev1.ContainerStatus) bool {
	return s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
}

// attempted is how many of the init containers had their turn: all until the last that has
// begun, and the first in any case.
func attempted(all []corev1.ContainerStatus) int {
	for i := len(all) - 1; i >= 0; i-- {
		if hasRun(all[i]) {
			return i + 1
		}
	}
	return min(1, len(all))
}

// endedWithPod says whether the status shows a container that endContainers ended.
func endedWithPod(s corev1.ContainerStatus) bool {
	return s.State.Terminated != nil && s.State.Terminated.Message == notLocated
}
