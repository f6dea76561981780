package podstatus

import (
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/runtimestate"
)

// observedState is the state of a container that the runtime has: running,
// terminated, or empty if it was created and not started.
func observedState(in Input, c *runtimestate.Container, old *corev1.ContainerStatus) corev1.ContainerState {
	switch c.State {
	case cri.ContainerState_CONTAINER_RUNNING:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: seconds(c.Started())}}
	case cri.ContainerState_CONTAINER_EXITED:
		return corev1.ContainerState{Terminated: terminatedState(in, c, old)}
	}
	return corev1.ContainerState{}
}

func terminatedState(in Input, c *runtimestate.Container, old *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	id := in.RuntimeName + "://" + c.Id
	t := &corev1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: terminationMessage(in, c, id, old),
		FinishedAt: seconds(c.Finished()), ContainerID: id,
	}
	if c.StartedAt > 0 {
		t.StartedAt = seconds(c.Started())
	}
	if t.Reason == "" {
		t.Reason = "Completed"
		if c.ExitCode != 0 {
			t.Reason = "Error"
		}
	}
	return t
}

// terminationMessage is what the runtime says of the end of a container, and
// what the container wrote itself.
func terminationMessage(in Input, c *runtimestate.Container, id string, old *corev1.ContainerStatus) string {
	message := c.Message
	if m, ok := in.Messages[c.Id]; ok {
		if message != "" && m != "" {
			message += ": "
		}
		return message + m
	}
	if old != nil {
		// Read before the kubelet restarted; the file may be gone.
		for _, t := range []*corev1.ContainerStateTerminated{old.State.Terminated, old.LastTerminationState.Terminated} {
			if t != nil && t.ContainerID == id {
				message = t.Message
			}
		}
	}
	return message
}
