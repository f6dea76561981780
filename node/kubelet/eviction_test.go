package kubelet

import (
	"testing"

	"knarr/node/kubelet/podtest"
)

func TestRank(t *testing.T) {
	low, high := podtest.Pod("low", "c"), podtest.Pod("high", "c")
	low.Spec.Priority, high.Spec.Priority = new(int32(0)), new(int32(10))
	all := []candidate{{pod: podtest.Pod("within", "c"), usage: 1, req: 2}, {pod: high, usage: 9, req: 1}, {pod: low, usage: 3, req: 1}}
	rank(all)
	if all[0].pod.Name != "low" || all[1].pod.Name != "high" || all[2].pod.Name != "within" {
		t.Errorf("%s %s %s", all[0].pod.Name, all[1].pod.Name, all[2].pod.Name)
	}
}
