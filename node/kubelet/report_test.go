package kubelet

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

// TestHoldStatus: the steps of a start are held back for a moment, nothing else.
func TestHoldStatus(t *testing.T) {
	waiting := func(reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	ended := waiting("ContainerCreating")
	ended.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
	for _, c := range []struct {
		name   string
		status corev1.PodStatus
		busy   []opKind
		change func(*worker)
		held   bool
	}{
		{"its sandbox is made", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waiting("ContainerCreating")}}, []opKind{opSandbox, opPull}, nil, true},
		{"its init containers have their turn", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{waiting("PodInitializing")}}, []opKind{opStart}, nil, true},
		{"nothing is done", corev1.PodStatus{Phase: corev1.PodPending}, nil, nil, false},
		{"only the status is written", corev1.PodStatus{Phase: corev1.PodPending}, []opKind{opStatus}, nil, false},
		{"it runs", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}}, []opKind{opStart}, nil, false},
		{"one container runs", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{running, waiting("ContainerCreating")}}, []opKind{opStart}, nil, false},
		{"a container cannot start", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waiting("ErrImagePull")}}, []opKind{opPull}, nil, false},
		{"a container is started again", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{ended}}, []opKind{opStart}, nil, false},
		{"it has to end", corev1.PodStatus{Phase: corev1.PodPending}, []opKind{opSandbox}, func(w *worker) { w.ended = &ending{} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &worker{pod: podtest.Pod("a", "c"), ops: map[opKey]*op{}}
				for _, k := range c.busy {
					w.ops[opKey{kind: k}] = &op{}
				}
				if c.change != nil {
					c.change(w)
				}
				if held := w.holdStatus(&c.status) > 0; held != c.held {
					t.Errorf("held is %v", held)
				}
				time.Sleep(statusHold)
				if w.holdStatus(&c.status) > 0 {
					t.Errorf("held for longer than %v", statusHold)
				}
			})
		})
	}
}
