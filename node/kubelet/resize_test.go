package kubelet

import (
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podtest"
)

func TestResizes(t *testing.T) {
	c := podtest.Container("a", podtest.Running, 0)
	c.Resources = &cri.ContainerResources{Linux: &cri.LinuxContainerResources{CpuShares: 102, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20}}
	v := podtest.Observed(c)
	want := proto.Clone(c.Resources.Linux).(*cri.LinuxContainerResources)
	if got := resizes(podtest.Pod("p", "a"), v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want }); len(got) != 0 {
		t.Errorf("nothing to resize, got %v", got)
	}
	p := podtest.Pod("p", "a")
	want.CpuShares = 104
	ask := func(*corev1.Container) *cri.LinuxContainerResources { return want }
	if got := resizes(p, v, nil, ask); len(got) != 1 {
		t.Errorf("a little more: %v", got)
	}
	if got := resizes(p, v, map[string]*cri.LinuxContainerResources{c.Id: want}, ask); len(got) != 0 {
		t.Errorf("asked for already: %v", got)
	}
	want.CpuQuota = 50000
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	got := resizes(p, v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want })
	if len(got) != 1 || got[0].restart {
		t.Errorf("%+v", got)
	}
	want.MemoryLimitInBytes = 2 << 20
	if got := resizes(p, v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want }); len(got) != 1 || !got[0].restart {
		t.Errorf("%+v", got)
	}
}

// TestResizeOfMemoryRequest: the runtime knows nothing of it, but a container whose
// policy says so begins anew for it.
func TestResizeOfMemoryRequest(t *testing.T) {
	limits := &cri.LinuxContainerResources{CpuShares: 102, MemoryLimitInBytes: 1 << 20}
	p := podtest.Pod("p", "a")
	spec := &p.Spec.Containers[0]
	spec.Resources = podtest.Resources("", "1Ki", "", "1Mi")
	c := podtest.Container("a", podtest.Running, 0)
	c.Resources = &cri.ContainerResources{Linux: limits}
	got := func() []resizing {
		return resizes(p, podtest.Observed(c), map[string]*cri.LinuxContainerResources{c.Id: limits}, func(*corev1.Container) *cri.LinuxContainerResources { return limits })
	}
	if all := got(); len(all) != 0 {
		t.Errorf("without such a policy: %+v", all)
	}
	spec.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	c.Annotations = map[string]string{crilabels.MemoryRequest: "1024"}
	if all := got(); len(all) != 0 {
		t.Errorf("the same: %+v", all)
	}
	spec.Resources = podtest.Resources("", "2Ki", "", "1Mi")
	if all := got(); len(all) != 1 || !all[0].restart {
		t.Errorf("another: %+v", all)
	}
}

// TestResizeFits: what a node cannot give a running pod waits, for what it does not have at
// all too; what could never be given to a pod that runs is infeasible.
func TestResizeFits(t *testing.T) {
	pod := func(name, request string, priority int32) *corev1.Pod {
		p := cpus(podtest.Pod(name, "c"), request)
		p.UID, p.Spec.NodeName, p.Spec.Priority = types.UID(name), "n", &priority
		return p
	}
	guaranteed := pod("mine", "100m", 0)
	guaranteed.Spec.Containers[0].Resources = podtest.Resources("200m", "1Mi", "200m", "1Mi")
	for _, c := range []struct {
		name      string
		want      *corev1.Pod
		other     string
		change    func(*Kubelet, *corev1.Node)
		reason    string
		message   string
		preempted bool
	}{
		{name: "fits", want: pod("mine", "1", 0), other: "1"},
		{name: "no room now", want: pod("mine", "1500m", 0), other: "1", reason: "Deferred", message: "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"},
		{name: "more than the node has", want: pod("mine", "3", 0), other: "1", reason: "Deferred", message: "Node didn't have enough resource: cpu, requested: 3000, used: 1000, capacity: 2000"},
		{name: "critical", want: pod("mine", "1500m", 2000001000), other: "1", preempted: true},
		{name: "critical, more than the node has", want: pod("mine", "3", 2000001000), other: "1", reason: "Deferred", message: "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"},
		{name: "full disk", want: pod("mine", "1", 0), other: "1", change: func(k *Kubelet, _ *corev1.Node) { k.pressure.Store(&pressure{disk: true}) }, reason: "Deferred", message: "The node had condition: [DiskPressure]. "},
		{name: "shutdown", want: pod("mine", "1", 0), other: "1", change: func(k *Kubelet, _ *corev1.Node) { k.shuttingDown.Store(true) }, reason: "Deferred", message: "Pod was rejected as the node is shutting down."},
		{name: "not tolerated any more", want: pod("mine", "1", 0), other: "1", change: func(_ *Kubelet, n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
		}, reason: "Deferred", message: "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		{name: "pinned", want: guaranteed, other: "1", change: func(k *Kubelet, _ *corev1.Node) { k.cfg.Settings.CPUManagerPolicy = "static" }, reason: "Infeasible", message: `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			k := &Kubelet{cfg: Config{Settings: &configuration.Settings{}}, cgroups: cgroup.Open(), metrics: newMetrics(), events: events, workers: map[types.UID]*worker{}}
			configuration.Default(k.cfg.Settings)
			k.pressure.Store(&pressure{})
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")}}}
			if c.change != nil {
				c.change(k, node)
			}
			k.node.Store(node)
			for _, p := range []*corev1.Pod{pod("mine", "100m", 0), pod("other", c.other, 0)} {
				w := &worker{k: k, uid: p.UID, wake: make(chan struct{}, 1)}
				w.shown.Store(&shown{pod: p, status: &corev1.PodStatus{}})
				k.workers[p.UID] = w
			}
			reason, message, _ := k.resizeFits(pod("mine", "100m", 0), &resizeClaim{pod: c.want})
			if reason != c.reason || message != c.message {
				t.Errorf("%s: %s; want %s: %s", reason, message, c.reason, c.message)
			}
			if got := k.workers["other"].inbox.end != nil; got != c.preempted {
				t.Errorf("the other pod was preempted: %v", got)
			}
		})
	}
}

func TestSwappedResize(t *testing.T) {
	pod := func(memory string, restart bool) *corev1.Pod {
		p := podtest.Pod("p", "c")
		p.Spec.Containers[0].Resources = podtest.Resources("", memory, "", "1Gi")
		if restart {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		}
		return p
	}
	swaps := criconfig.Node{LimitedSwap: true}.Swaps
	for name, c := range map[string]struct {
		is, want *corev1.Pod
		swaps    func(*corev1.Pod, *corev1.Container) bool
		swapped  bool
	}{
		"more memory":           {pod("1Mi", false), pod("2Mi", false), swaps, true},
		"no swap any more":      {pod("1Mi", false), pod("1Gi", false), swaps, true},
		"the same memory":       {pod("1Mi", false), pod("1Mi", false), swaps, false},
		"restarted":             {pod("1Mi", true), pod("2Mi", true), swaps, false},
		"a node that swaps not": {pod("1Mi", false), pod("2Mi", false), criconfig.Node{}.Swaps, false},
	} {
		if got := swappedResize(c.is, c.want, c.swaps); got != c.swapped {
			t.Errorf("%s: %v", name, got)
		}
	}
}
