package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

func TestPhase(t *testing.T) {
	never, onFailure := corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	for _, c := range []struct {
		name     string
		pod      *corev1.Pod
		view     *runtimestate.Pod
		terminal bool
		want     corev1.PodPhase
	}{
		{"nothing yet", podtest.Pod("p", "a"), &runtimestate.Pod{}, false, corev1.PodPending},
		{"running", podtest.Pod("p", "a"), podtest.Observed(podtest.Container("a", podtest.Running, 0)), false, corev1.PodRunning},
		{"one to go", podtest.Pod("p", "a", "b"), podtest.Observed(podtest.Container("a", podtest.Running, 0)), false, corev1.PodPending},
		{"ended, will restart", podtest.Pod("p", "a"), podtest.Observed(podtest.Container("a", podtest.Exited, 1)), false, corev1.PodRunning},
		{"ended for good", podtest.Pod("p", "a"), podtest.Observed(podtest.Container("a", podtest.Exited, 1)), true, corev1.PodFailed},
		{"succeeded", podtest.WithRestartPolicy(podtest.Pod("p", "a"), never), podtest.Observed(podtest.Container("a", podtest.Exited, 0)), false, corev1.PodSucceeded},
		{"failed", podtest.WithRestartPolicy(podtest.Pod("p", "a"), never), podtest.Observed(podtest.Container("a", podtest.Exited, 1)), false, corev1.PodFailed},
		{"failed, retried", podtest.WithRestartPolicy(podtest.Pod("p", "a"), onFailure), podtest.Observed(podtest.Container("a", podtest.Exited, 1)), false, corev1.PodRunning},
		{"half failed", podtest.WithRestartPolicy(podtest.Pod("p", "a", "b"), never), podtest.Observed(podtest.Container("a", podtest.Exited, 1), podtest.Container("b", podtest.Exited, 0)), false, corev1.PodFailed},
		{"in init", podtest.WithInit(podtest.Pod("p", "a"), "i"), podtest.Observed(podtest.Container("i", podtest.Running, 0)), false, corev1.PodPending},
		{"init failed", podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "a"), "i"), never), podtest.Observed(podtest.Container("i", podtest.Exited, 1)), false, corev1.PodFailed},
		{"init failed, retried", podtest.WithInit(podtest.Pod("p", "a"), "i"), podtest.Observed(podtest.Container("i", podtest.Exited, 1)), false, corev1.PodPending},
		{"only the sidecar runs", podtest.WithInit(podtest.Pod("p", "a"), "s"), podtest.Observed(podtest.Container("s", podtest.Running, 0)), false, corev1.PodPending},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := statusOf(c.pod, c.view, func(in *Input) {
				if c.terminal {
					in.Terminal, in.Ended = true, &Ending{}
				}
			})
			if s.Phase != c.want {
				t.Errorf("phase %s, want %s", s.Phase, c.want)
			}
		})
	}
}
