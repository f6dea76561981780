package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podtest"
)

// TestMissingRestarts: a container that is gone is to be started once more, which counts at
// once, and once; not in a pod that is deleted, and not of one that had not begun.
func TestMissingRestarts(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	for _, c := range []struct {
		name     string
		old      corev1.ContainerState
		deleted  bool
		restarts int32
		last     bool
	}{
		{"ran", running, false, 3, true},
		{"ran, deleted", running, true, 2, true},
		{"waited", waiting, false, 2, false},
		{"waited, deleted", waiting, true, 2, false},
	} {
		p := podtest.Pod("p", "a")
		if c.deleted {
			p.DeletionTimestamp = &metav1.Time{}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a", State: c.old, RestartCount: 2}}
		for range 2 {
			p.Status = statusOf(p, podtest.Observed(), nil)
			if s := p.Status.ContainerStatuses[0]; s.RestartCount != c.restarts || (s.LastTerminationState.Terminated != nil) != c.last {
				t.Errorf("%s: %d restarts, ended last as %v", c.name, s.RestartCount, s.LastTerminationState.Terminated)
			}
		}
	}
}
