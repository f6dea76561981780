package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// setReadiness sets whether the container has started and is ready: by its
// probes while it runs, by its exit code if it is an init container.
func setReadiness(in Input, s *corev1.ContainerStatus, spec *corev1.Container, latest *runtimestate.Container, kind podspec.ContainerKind) {
	started := false
	s.Started, s.Ready = &started, false
	switch {
	case kind == podspec.EphemeralContainer:
		s.Started = nil
	case latest != nil && latest.Running():
		started = in.Started(latest, spec)
		s.Ready = started && in.Ready(latest, spec) && (kind != podspec.InitContainer || podspec.IsSidecar(spec))
	case kind == podspec.InitContainer && !podspec.IsSidecar(spec):
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
	}
}
