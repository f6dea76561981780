package kubelet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

// TestSettled: a container that is about to be started is no restart yet; one whose
// start failed is.
func TestSettled(t *testing.T) {
	ended, made, other := podtest.Container("a", podtest.Exited, 1), podtest.Container("a", podtest.Created, 0), podtest.Container("b", podtest.Created, 0)
	w := &worker{observed: podtest.Observed(made, ended, other), ops: map[opKey]*op{}}
	if got := w.settled(); got != w.observed {
		t.Errorf("nothing is under way: %v", got.Containers)
	}
	w.ops[opKey{kind: opStart, of: "a"}] = &op{}
	if got := w.settled().Containers; !slices.Equal(got, []*runtimestate.Container{ended, other}) {
		t.Errorf("%v", got)
	}
	if len(w.observed.Containers) != 3 {
		t.Error("what was observed is changed")
	}
}

// TestDebuggedLater: an ephemeral container that is to see the processes of another one is not
// started before that is there.
func TestDebuggedLater(t *testing.T) {
	n := newNode(t)
	n.start()
	p := podtest.Pod("p", "app")
	p.Spec.Containers[0].Image = "img:later"
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{TargetContainerName: "app",
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: podtest.Image}}}
	n.api.addPod(p)
	n.until("it says what it waits for", func() bool {
		s := n.api.pod("p").Status.EphemeralContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError" &&
			s[0].State.Waiting.Message == "unable to find target container app"
	})
	if slices.Contains(n.rt.Calls(), "CreateContainer debug") {
		t.Error("it is created without its target")
	}
}
