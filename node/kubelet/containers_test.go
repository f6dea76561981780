package kubelet

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

// TestReplacing: from the kill of a container whose definition changed to the
// start of the next one, or to what keeps that from starting.
func TestReplacing(t *testing.T) {
	older, next := podtest.Container("a", podtest.Running, 0), podtest.Container("a", podtest.Running, 1)
	older.Id, next.Id = "1", "2"
	with := func(c *runtimestate.Container, state cri.ContainerState) *runtimestate.Container {
		status := proto.Clone(c.ContainerStatus).(*cri.ContainerStatus)
		status.State = state
		return &runtimestate.Container{ContainerStatus: status}
	}
	for _, c := range []struct {
		name string
		view *runtimestate.Pod
		wait string
		want bool
	}{
		{"killed", podtest.Observed(older), "", true},
		{"gone out", podtest.Observed(with(older, cri.ContainerState_CONTAINER_EXITED)), "", true},
		{"made", podtest.Observed(with(next, cri.ContainerState_CONTAINER_CREATED), with(older, cri.ContainerState_CONTAINER_EXITED)), "", true},
		{"runs", podtest.Observed(next, with(older, cri.ContainerState_CONTAINER_EXITED)), "", false},
		{"ran", podtest.Observed(with(next, cri.ContainerState_CONTAINER_EXITED)), "", false},
		{"cannot be pulled", podtest.Observed(with(older, cri.ContainerState_CONTAINER_EXITED)), "ErrImagePull", false},
		{"no container", podtest.Observed(), "", false},
	} {
		w := &worker{observed: c.view, containers: map[string]*containerState{"a": {replacedID: "1", waiting: waitError{reason: c.wait}}}}
		if got := w.replacing(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

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
