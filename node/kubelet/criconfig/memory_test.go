package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
)

func TestUnified(t *testing.T) {
	pod := func(request, limit string) *corev1.Pod {
		p := podtest.Pod("p", "c")
		p.Spec.Containers[0].Resources = podtest.Resources("", request, "", limit)
		return p
	}
	critical := pod("1Gi", "")
	critical.Spec.Priority = new(int32(podspec.SystemCritical))
	limited := Node{CgroupV2: true, Memory: 8 << 30, Swap: 4 << 30, SwapControl: true, LimitedSwap: true, Throttling: 0.9, AllocatableMemory: 6 << 30}
	none := limited
	none.LimitedSwap, none.Throttling = false, 0
	for _, c := range []struct {
		name       string
		node       Node
		pod        *corev1.Pod
		swap, high string
	}{
		{"no swap", none, pod("1Gi", "2Gi"), "0", ""},
		{"a part of it", limited, pod("1Gi", "2Gi"), "536870912", "2040107008"},
		{"without a limit", limited, pod("1Gi", ""), "536870912", "5905580032"},
		{"the request is the limit", limited, pod("1Gi", "1Gi"), "0", ""},
		{"BestEffort", limited, podtest.Pod("p", "c"), "0", ""},
		{"critical", limited, critical, "0", "5905580032"},
		{"no control of swap", Node{CgroupV2: true, Memory: 8 << 30}, pod("1Gi", "2Gi"), "", ""},
	} {
		r := c.node.ContainerResources(c.pod, &c.pod.Spec.Containers[0])
		if r.Unified["memory.swap.max"] != c.swap || r.Unified["memory.high"] != c.high || r.Unified["memory.oom.group"] != "1" {
			t.Errorf("%s: %v", c.name, r.Unified)
		}
	}
	if r := (Node{SwapControl: true}).ContainerResources(critical, &critical.Spec.Containers[0]); r.Unified != nil {
		t.Errorf("on version 1: %v", r.Unified)
	}
}

// TestReserved: the kernel never takes what a Guaranteed pod asks for, and last what another
// does; without the policy nothing is kept, also not what was before.
func TestReserved(t *testing.T) {
	pod := func(request, limit string) *corev1.Pod {
		p := podtest.Pod("p", "c")
		p.Spec.Containers[0].Resources = podtest.Resources(request, request, limit, limit)
		return p
	}
	tiered := Node{CgroupV2: true, Throttling: 0.9, AllocatableMemory: 6 << 30, ReserveMemory: true}
	none := tiered
	none.ReserveMemory = false
	for _, c := range []struct {
		name       string
		node       Node
		pod        *corev1.Pod
		least, low string
		ofPod      [2]int64
	}{
		{"Guaranteed", tiered, pod("1Gi", "1Gi"), "1073741824", "", [2]int64{1 << 30, 0}},
		{"Burstable", tiered, pod("1Gi", "2Gi"), "", "1073741824", [2]int64{0, 1 << 30}},
		{"BestEffort", tiered, podtest.Pod("p", "c"), "0", "0", [2]int64{}},
		{"no policy", none, pod("1Gi", "1Gi"), "0", "0", [2]int64{}},
		{"no feature", Node{CgroupV2: true}, pod("1Gi", "1Gi"), "", "", [2]int64{}},
	} {
		r := c.node.ContainerResources(c.pod, &c.pod.Spec.Containers[0])
		least, low := c.node.ReservedMemory(c.pod)
		if r.Unified["memory.min"] != c.least || r.Unified["memory.low"] != c.low || [2]int64{least, low} != c.ofPod {
			t.Errorf("%s: %v, of the pod %d, %d", c.name, r.Unified, least, low)
		}
	}
}
