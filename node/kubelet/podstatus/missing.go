package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// missingStatus is the status of a container that had not ended when it was last
// seen, and that the runtime does not have.
func missingStatus(in Input, spec *corev1.Container, old *corev1.ContainerStatus, kind podspec.ContainerKind) corev1.ContainerStatus {
	s := initialStatus(in, spec, kind)
	s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
	if old.State.Running != nil && s.LastTerminationState.Terminated == nil {
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			Reason: "ContainerStatusUnknown", ExitCode: 137,
			Message: "The container could not be located when the pod was deleted.  The container used to be Running",
		}
		if in.Pod.DeletionTimestamp == nil { // else nothing takes its place
			s.RestartCount++
		}
	}
	if kind == podspec.InitContainer && !podspec.IsSidecar(spec) && anyMainCreated(in.Pod, in.Observed) {
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason:  "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
	}
	return s
}

// anyMainCreated says whether the runtime has a regular container of the pod,
// which it does not before the init containers have succeeded.
func anyMainCreated(pod *corev1.Pod, v *runtimestate.Pod) bool {
	for i := range pod.Spec.Containers {
		if v.Latest(pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}
