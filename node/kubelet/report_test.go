package kubelet

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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
				w := &worker{pod: podtest.Pod("a", "c"), ops: map[opKey]*op{}, observed: podtest.Observed()}
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

// TestHoldWhileReplaced: that a container has ended whose place another takes is held back
// for a moment, unless the next one cannot be started or the pod has to end.
func TestHoldWhileReplaced(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	next := podtest.Container("c", podtest.Created, 0)
	next.Id = "next"
	for name, c := range map[string]struct {
		state    corev1.ContainerState
		replaced bool
		code     cri.ContainerState
		change   func(*worker)
		held     bool
	}{
		"ended":     {running, true, podtest.Exited, nil, true},
		"by itself": {running, false, podtest.Exited, nil, false},
		"not yet":   {running, true, podtest.Running, nil, false},
		"the next is made": {running, true, podtest.Exited, func(w *worker) {
			w.observed.Containers = append(w.observed.Containers, next)
			w.ops[opKey{kind: opStart, of: "c"}] = &op{}
		}, true},
		"the next waits":   {corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}, true, podtest.Exited, nil, false},
		"the pod ends":     {running, true, podtest.Exited, func(w *worker) { w.ended = &ending{} }, false},
		"the pod is to go": {running, true, podtest.Exited, func(w *worker) { w.pod.DeletionTimestamp = new(metav1.Now()) }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := podtest.Observed(podtest.Container("c", c.code, 0))
			v.Containers[0].Replaced = c.replaced
			w := &worker{pod: podtest.Pod("a", "c"), ops: map[opKey]*op{}, observed: v}
			if c.change != nil {
				c.change(w)
			}
			status := &corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: c.state}}}
			if held := w.holdStatus(status) > 0; held != c.held {
				t.Errorf("%s: held is %v", name, held)
			}
			time.Sleep(replaceHold)
			if w.holdStatus(status) > 0 {
				t.Errorf("%s: held for longer than %v", name, replaceHold)
			}
		})
	}
}
