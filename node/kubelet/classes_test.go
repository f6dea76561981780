package kubelet

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/nodeallocatable"
	"knarr/node/kubelet/podtest"
)

// TestLimitsOfGroups: on a tree of directories, the group of all pods gets the node's
// limits and the classes get their weights, which follow the pods.
func TestLimitsOfGroups(t *testing.T) {
	tree := t.TempDir()
	if err := os.WriteFile(filepath.Join(tree, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.config = func(c *Config) {
		c.CgroupParent = "/kubepods"
		c.Settings.SystemReserved = map[string]string{"cpu": "500m"}
		c.Settings.EnforceNodeAllocatable = []string{"pods", "system-reserved"}
		c.Settings.SystemReservedCgroup = "/system"
		c.Settings.FeatureGates = map[string]bool{"MemoryQoS": true}
		c.Settings.MemoryReservationPolicy = configuration.TieredReservation
	}
	n.cgroups = cgroup.OpenAt(tree)
	n.start()
	value := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(tree, path))
		return strings.TrimSpace(string(b))
	}
	n.until("the limits", func() bool { return value("kubepods/cpu.weight") != "" && value("kubepods/memory.max") != "" })
	pids := pidCapacity()[nodeallocatable.PIDs]
	number := func(path string) int64 { i, _ := strconv.ParseInt(value(path), 10, 64); return i }
	n.until("the number of processes", func() bool { return number("kubepods/pids.max") == pids.Value()-pids.Value()/10 })
	n.until("the event", func() bool {
		return strings.Contains(strings.Join(n.api.events(), "\n"), "NodeAllocatableEnforced: Updated Node Allocatable limit across pods")
	})
	n.until("what is missing", func() bool {
		return strings.Contains(strings.Join(n.api.events(), "\n"), `FailedNodeAllocatableEnforcement: Failed to enforce System Reserved Cgroup Limits on "/system": the cgroup does not exist`)
	})
	n.until("the least weight", func() bool {
		return value("kubepods/besteffort/cpu.weight") == "1" && value("kubepods/burstable/cpu.weight") == "1"
	})
	p := podtest.Pod("heavy", "c")
	p.Spec.Containers[0].Resources = podtest.Resources("1", "64Mi", "", "")
	n.api.addPod(p)
	n.until("the weight of its class", func() bool { return value("kubepods/burstable/cpu.weight") == "39" })
	n.until("the memory that is kept", func() bool {
		return value("kubepods/burstable/memory.low") == "67108864" && value("kubepods/memory.min") == "67108864" &&
			value("kubepods/burstable/pod"+string(p.UID)+"/memory.low") == "67108864"
	})
	if got := number("kubepods/burstable/pod" + string(p.UID) + "/pids.max"); got <= 0 || got > pids.Value()/4 || got != *n.k.cfg.Settings.PodPidsLimit {
		t.Errorf("%d processes for a pod, %d in the settings", got, *n.k.cfg.Settings.PodPidsLimit)
	}
	if all := asked(t, n.k, "/metrics"); total(all["kubelet_memory_qos_node_memory_low_bytes"], "") != 64<<20 || len(all["kubelet_memory_qos_node_memory_min_bytes"].GetMetric()) != 1 {
		t.Errorf("%v, %v", all["kubelet_memory_qos_node_memory_low_bytes"], all["kubelet_memory_qos_node_memory_min_bytes"])
	}
	if err := os.MkdirAll(filepath.Join(tree, "system"), 0o755); err != nil {
		t.Fatal(err)
	}
	failed := n.k.limit([]nodeallocatable.Group{{Path: "/system", Existing: true, Limits: cgroup.Limits{CPUShares: 512}}})
	if len(failed) > 0 || value("system/cpu.weight") != "20" {
		t.Errorf("the reserved group: %v, weight %q", failed, value("system/cpu.weight"))
	}
}
