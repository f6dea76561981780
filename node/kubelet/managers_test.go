package kubelet

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/deviceplugin/plugintest"
	"knarr/node/kubelet/podtest"
)

func pinnedPod(name, cpu string) *corev1.Pod {
	p := podtest.Pod(name, name)
	p.Spec.Containers[0].Resources = podtest.Resources(cpu, "1Mi", cpu, "1Mi")
	return p
}

// TestCPUs: a container that wants CPUs for itself gets them, the others make room and
// come back when it has gone.
func TestCPUs(t *testing.T) {
	n := newNode(t)
	n.sys = podtest.CPUs(t, 8, 1)
	n.config = func(c *Config) {
		c.Settings.CPUManagerPolicy, c.Settings.ReservedSystemCPUs = "static", "0"
		c.Settings.CPUManagerReconcilePeriod = metav1.Duration{Duration: 10 * time.Millisecond}
	}
	n.start()
	n.api.addPod(podtest.Pod("all", "all"))
	n.until("a pod on all CPUs", n.ready("all"))
	if got := n.rt.Resources("all").GetCpusetCpus(); got != "0-7" {
		t.Errorf("at first on %s", got)
	}
	n.api.addPod(pinnedPod("own", "2"))
	n.until("a pod on its own CPUs", n.ready("own"))
	if got := n.rt.Resources("own").GetCpusetCpus(); got != "1,5" {
		t.Errorf("on %s", got)
	}
	if got := n.rt.Resources("own").GetCpuQuota(); got != -1 {
		t.Errorf("CPUs of its own with a quota of %d", got)
	}
	n.until("the other one made room", func() bool { return n.rt.Resources("all").GetCpusetCpus() == "0,2-4,6-7" })
	n.api.addPod(pinnedPod("more", "6"))
	n.until("one too many rejected", func() bool { return n.api.pod("more").Status.Reason == "UnexpectedAdmissionError" })
	if m := n.api.pod("more").Status.Message; !strings.Contains(m, "Allocate failed due to not enough cpus available to satisfy request: requested=6, available=5, which is unexpected") {
		t.Errorf("message %q", m)
	}
	n.managersShow(t, "topology_manager_admission_requests_total 3",
		"cpu_manager_pinning_requests_total 2", "cpu_manager_pinning_errors_total 1", "container_aligned_compute_resources_count uncore_cache container 1",
		"cpu_manager_allocation_per_numa 0 2", "cpu_manager_exclusive_cpu_allocation_count 2", "cpu_manager_shared_pool_size_millicores 5000")
	n.api.deletePod("own")
	n.until("all CPUs again", func() bool { return n.rt.Resources("all").GetCpusetCpus() == "0-7" })
}

// TestTopology: CPUs and a device of one container are of one NUMA node, and a pod for
// which that cannot be is rejected.
func TestTopology(t *testing.T) {
	n := newNode(t)
	n.sys = podtest.CPUs(t, 8, 2)
	n.config = func(c *Config) {
		c.Settings.CPUManagerPolicy, c.Settings.ReservedSystemCPUs, c.Settings.TopologyManagerPolicy = "static", "0", "single-numa-node"
	}
	n.start()
	on := func(id string, node int64) *pluginapi.Device {
		return &pluginapi.Device{ID: id, Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}}}
	}
	plugin := &plugintest.Plugin{}
	plugintest.Start(t, plugin, n.pluginDir(), gpu, on("a", 1), on("b", 1))
	n.until("the devices on the Node", n.offers(2, 2))
	with := func(name, cpu string) *corev1.Pod {
		p := pinnedPod(name, cpu)
		r := p.Spec.Containers[0].Resources
		r.Requests[gpu], r.Limits[gpu] = resource.MustParse("1"), resource.MustParse("1")
		return p
	}
	n.api.addPod(with("one", "2"))
	n.until("the pod", n.ready("one"))
	if got := n.rt.Resources("one").GetCpusetCpus(); got != "1,5" || !slices.Equal(plugin.Calls(), []string{"Allocate a"}) {
		t.Errorf("CPUs %s, calls %v", got, plugin.Calls())
	}
	n.api.addPod(with("two", "3"))
	n.until("a pod for which there is no node", func() bool { return n.api.pod("two").Status.Reason == "TopologyAffinityError" })
	n.managersShow(t, "topology_manager_admission_requests_total 2", "topology_manager_admission_errors_total 1", "cpu_manager_pinning_requests_total 1",
		"container_aligned_compute_resources_count numa_node container 1", "container_aligned_compute_resources_count uncore_cache container 1",
		"container_aligned_compute_resources_failure_count numa_node container 1", "cpu_manager_allocation_per_numa 1 2",
		"cpu_manager_exclusive_cpu_allocation_count 2", "cpu_manager_shared_pool_size_millicores 5000")
	if m := n.api.pod("two").Status.Message; !strings.Contains(m, "Resources cannot be allocated with Topology locality") {
		t.Errorf("message %q", m)
	}
}

// TestMemory: a container of a Guaranteed pod has memory of one NUMA node, agents are told
// so, and one that asks for more than there is is rejected.
func TestMemory(t *testing.T) {
	n := newNode(t)
	n.sys = podtest.CPUs(t, 8, 2)
	podtest.Memory(t, n.sys, 2, 4, 0)
	n.config = func(c *Config) {
		c.Settings.MemoryManagerPolicy, c.Settings.SystemReserved = "Static", map[string]string{"memory": "1Gi"}
		c.Settings.ReservedMemory = []kubeletconfig.MemoryReservation{{NumaNode: 0, Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	}
	stop := n.start()
	with := func(name, memory string) *corev1.Pod {
		p := podtest.Pod(name, name)
		p.Spec.Containers[0].Resources = podtest.Resources("1", memory, "1", memory)
		return p
	}
	n.api.addPod(podtest.Pod("any", "any"))
	n.api.addPod(with("small", "1Gi"))
	n.until("both pods", func() bool { return n.ready("any")() && n.ready("small")() })
	n.api.addPod(with("large", "3584Mi"))
	n.until("a pod for which only the other node has enough", n.ready("large"))
	for name, want := range map[string]string{"any": "", "small": "0", "large": "1"} {
		if got := n.rt.Resources(name).GetCpusetMems(); got != want {
			t.Errorf("%s has memory of %q, want %q", name, got, want)
		}
	}
	n.api.addPod(with("more", "3Gi"))
	n.until("one too many rejected", func() bool { return n.api.pod("more").Status.Reason == "UnexpectedAdmissionError" })
	if m := n.api.pod("more").Status.Message; !strings.Contains(m, "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected") {
		t.Errorf("message %q", m)
	}
	if got := blocks(n.k.memory.Blocks("uid-large", "large")); len(got) != 1 || got[0].Size != 3584<<20 || got[0].Topology.Nodes[0].ID != 1 {
		t.Errorf("agents are told %v", got)
	}
	stop()
	n.start()
	n.api.deletePod("small")
	n.until("the pod gone", func() bool { return n.api.pod("small") == nil })
	n.api.addPod(with("other", "2Gi"))
	n.until("one in its place, after a restart", n.ready("other"))
	if got := n.rt.Resources("other").GetCpusetMems(); got != "0" {
		t.Errorf("other has memory of %q", got)
	}
}

// TestPinnedResize: what containers have for themselves is not changed while they run.
func TestPinnedResize(t *testing.T) {
	is := pinnedPod("p", "1")
	cpu, memory := pinnedPod("p", "2"), pinnedPod("p", "1")
	memory.Spec.Containers[0].Resources = podtest.Resources("1", "2Mi", "1", "2Mi")
	burst := podtest.Pod("p", "p")
	burst.Spec.Containers[0].Resources = podtest.Resources("2", "2Mi", "3", "3Mi")
	both := &configuration.Settings{CPUManagerPolicy: "static", MemoryManagerPolicy: "Static"}
	for _, c := range []struct {
		want    *corev1.Pod
		s       *configuration.Settings
		message string
	}{
		{cpu, both, `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`},
		{memory, both, `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`},
		{cpu, &configuration.Settings{CPUManagerPolicy: "none", MemoryManagerPolicy: "Static"}, ""},
		{memory, &configuration.Settings{CPUManagerPolicy: "static", MemoryManagerPolicy: "None"}, ""},
		{burst, both, ""},
		{is, both, ""},
	} {
		if got, _ := pinnedResize(c.s, is, c.want); got != c.message {
			t.Errorf("%q, want %q", got, c.message)
		}
	}
}

// TestRejectedKeepsNothing: a pod that is rejected after it was given something has given
// all of it back by the time that the API is told.
func TestRejectedKeepsNothing(t *testing.T) {
	n := newNode(t)
	n.sys = podtest.CPUs(t, 8, 2)
	podtest.Memory(t, n.sys, 2, 4, 0)
	n.config = func(c *Config) {
		c.Settings.CPUManagerPolicy, c.Settings.ReservedSystemCPUs = "static", "0"
		c.Settings.MemoryManagerPolicy, c.Settings.SystemReserved = "Static", map[string]string{"memory": "1Gi"}
		c.Settings.ReservedMemory = []kubeletconfig.MemoryReservation{{NumaNode: 0, Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	}
	n.start()
	var calls atomic.Int32
	plugin := &plugintest.Plugin{Fail: func() error {
		if calls.Add(1) == 2 {
			return errors.New("broken")
		}
		return nil
	}}
	plugintest.Start(t, plugin, n.pluginDir(), gpu, plugintest.Devices("a", "b")...)
	n.until("the devices on the Node", n.offers(2, 2))
	with := func(name, cpu, gpus string) *corev1.Pod {
		p := podtest.Pod(name, name+"-1", name+"-2")
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = podtest.Resources(cpu, "1Gi", cpu, "1Gi")
			if gpus != "" {
				r := p.Spec.Containers[i].Resources
				r.Requests[gpu], r.Limits[gpu] = resource.MustParse(gpus), resource.MustParse(gpus)
			}
		}
		return p
	}
	elsewhere := with("elsewhere", "1", "1")
	elsewhere.Spec.NodeSelector = map[string]string{"is": "another"}
	for _, c := range []struct {
		pod    *corev1.Pod
		reason string
	}{
		{with("cpus", "4", ""), "UnexpectedAdmissionError"}, // there are 7
		{elsewhere, "NodeAffinity"},
		{with("broken", "1", "1"), "UnexpectedAdmissionError"},
	} {
		n.api.addPod(c.pod)
		n.until(c.pod.Name+" rejected", func() bool { return n.api.pod(c.pod.Name).Status.Reason == c.reason })
		for _, container := range c.pod.Spec.Containers {
			uid := c.pod.UID
			cpus, memory, devices := n.k.cpus.Exclusive(uid, container.Name), n.k.memory.Blocks(uid, container.Name), n.k.devices.Of(uid, container.Name)
			if !cpus.IsEmpty() || len(memory) > 0 || len(devices) > 0 || n.k.alignment.near(uid, container.Name) != nil {
				t.Errorf("%s keeps CPUs %s, memory %v, devices %v", container.Name, cpus, memory, devices)
			}
		}
	}
	n.api.addPod(with("both", "3", "1"))
	n.until("a pod with all of it", n.ready("both"))
}
