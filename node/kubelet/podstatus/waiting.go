package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// waitingState is the waiting state of a container that could not be started or
// waits for its restart; nil if it does not wait.
func waitingState(in Input, spec *corev1.Container, latest *runtimestate.Container, kind podspec.ContainerKind) *corev1.ContainerStateWaiting {
	w, ok := in.Waiting[spec.Name]
	initDone := kind == podspec.InitContainer && latest != nil && latest.Exited() && latest.ExitCode == 0 && !podspec.IsSidecar(spec)
	if !ok || initDone || latest != nil && latest.Running() || !runtimestate.ShouldRestart(in.Pod, spec, latest) {
		return nil
	}
	return &corev1.ContainerStateWaiting{Reason: w.Reason, Message: Truncate(w.Message)}
}
