package kubelet

import (
	"slices"
	"testing"

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
