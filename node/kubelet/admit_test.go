package kubelet

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"knarr/node/kubelet/allocation"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/preemption"
)

// TestWhoTakesRoom: on a node for two pods, neither one that was rejected nor one
// that the API no longer has keeps another out.
func TestWhoTakesRoom(t *testing.T) {
	allocations, err := allocation.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{cfg: Config{Settings: &configuration.Settings{}}, workers: map[types.UID]*worker{}, events: record.NewFakeRecorder(10), allocations: allocations}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}
	k.node.Store(node)
	come := func(name string) bool {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n"}}
		w := newWorker(k, p)
		_, e := k.admit(p)
		if e != nil {
			w.reject(e)
		}
		k.workers[p.UID] = w
		return e == nil
	}
	if !come("a") || !come("b") {
		t.Fatal("the first two are not taken")
	}
	if come("c") || come("d") {
		t.Fatal("a third is taken")
	}
	if s := k.workers["c"].shown.Load(); s.status.Phase != corev1.PodFailed {
		t.Errorf("a rejected pod shows as %q", s.status.Phase)
	}
	k.workers["a"].finish()
	if !come("e") {
		t.Error("the place of one that is gone is not given away")
	}
	if come("f") {
		t.Error("one too many is taken")
	}
}

// admitting is a kubelet that decides and runs nothing, with a node of 8 CPUs and two NUMA
// nodes of 4 GiB.
func admitting(t *testing.T) *Kubelet {
	t.Helper()
	n, sys := newNode(t), podtest.CPUs(t, 8, 2)
	podtest.Memory(t, sys, 2, 4, 0)
	conn, err := n.rt.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	k, err := New(Config{
		Kube: n.api.config(), Runtime: conn, NodeName: "n1", RootDir: n.dir, CgroupParent: "-", Listen: "-",
		Settings: &configuration.Settings{
			CPUManagerPolicy: "static", ReservedSystemCPUs: "0", MemoryManagerPolicy: "Static", SystemReserved: map[string]string{"memory": "1Gi"}, EvictionHard: map[string]string{},
			ReservedMemory: []kubeletconfig.MemoryReservation{{NumaNode: 0, Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	k.ctx = t.Context()
	k.events, k.machine, k.sysDir = record.NewFakeRecorder(1000), machine{memory: 8 << 30}, sys
	k.newDevices()
	if err := k.takeUp(); err != nil {
		t.Fatal(err)
	}
	return k
}

// admissionFailures are ways not to be taken, in the order in which upstream's kubelet
// asks for them: its handlers, and what the one of the predicates asks for.
var admissionFailures = []struct {
	reason, message string
	make            func(k *Kubelet, p *corev1.Pod)
}{
	{"Evicted", "The node had condition: [DiskPressure]. ", func(k *Kubelet, p *corev1.Pod) { k.pressure.Store(&pressure{disk: true}) }},
	{"SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`, func(k *Kubelet, p *corev1.Pod) {
		p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}
	}},
	{"UnexpectedAdmissionError", "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected", func(k *Kubelet, p *corev1.Pod) {
		r := p.Spec.Containers[0].Resources
		r.Requests["memory"], r.Limits["memory"] = resource.MustParse("1000Gi"), resource.MustParse("1000Gi")
	}},
	{"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label", func(k *Kubelet, p *corev1.Pod) {
		p.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	}},
	{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS", func(k *Kubelet, p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }},
	{"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node", func(k *Kubelet, p *corev1.Pod) {
		p.Spec.SecurityContext.SupplementalGroupsPolicy = new(corev1.SupplementalGroupsPolicyStrict)
	}},
	{"OutOfephemeral-storage", "Node didn't have enough resource: ephemeral-storage, requested: 2147483648, used: 0, capacity: 1073741824", func(k *Kubelet, p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = resource.MustParse("2Gi")
	}},
	{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector", func(k *Kubelet, p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }},
	{"NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name", func(k *Kubelet, p *corev1.Pod) { p.Spec.NodeName = "n2" }},
	{"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports", func(k *Kubelet, p *corev1.Pod) { p.Spec.Containers[0].Ports[0].HostPort = 80 }},
	{"TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate", func(k *Kubelet, p *corev1.Pod) { p.Spec.Tolerations = nil }},
	{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host", func(k *Kubelet, p *corev1.Pod) {
		p.Spec.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	}},
	{"PodFeatureUnsupported", "Pod requires node features that are not available: UserNamespacesHostNetworkSupport", func(k *Kubelet, p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, new(false) }},
	{"NodeShutdown", "Pod was rejected as the node is shutting down.", func(k *Kubelet, p *corev1.Pod) { k.shuttingDown.Store(true) }},
}

// TestAdmissionOrder: of two reasons not to be taken a pod is told the one that upstream
// tells, critical pods too if preemption would not help, and no CPU or memory is kept.
func TestAdmissionOrder(t *testing.T) {
	k := admitting(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"disk": "ssd"}}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("7Gi"), "pods": resource.MustParse("3"), "ephemeral-storage": resource.MustParse("1Gi")}
	node.Spec.Taints = []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoExecute}}
	k.node.Store(node)
	other := podtest.Pod("other", "c")
	other.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	k.workers[other.UID] = newWorker(k, other)
	ask := func(priority int32, failures ...int) *ending {
		k.pressure.Store(&pressure{})
		k.shuttingDown.Store(false)
		p := podtest.Pod("p", "c")
		p.Spec.Containers[0].Resources = podtest.Resources("2", "1Gi", "2", "1Gi")
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 81}}
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		p.Spec.SecurityContext, p.Spec.Priority = &corev1.PodSecurityContext{}, &priority
		for _, i := range failures {
			admissionFailures[i].make(k, p)
		}
		_, e := k.admit(p)
		if e != nil && (k.cpus.Use().Exclusive > 0 || len(k.memory.Blocks(p.UID, "c")) > 0) {
			t.Errorf("%s: %d CPUs and memory %v are kept", e.reason, k.cpus.Use().Exclusive, k.memory.Blocks(p.UID, "c"))
		}
		k.release(p.UID)
		return e
	}
	if e := ask(0); e != nil {
		t.Fatalf("the pod that fails nothing: %+v", e)
	}
	for i, first := range admissionFailures {
		if e := ask(0, i); e == nil || e.reason != first.reason || e.message != first.message || !e.rejected {
			t.Errorf("alone %s: %+v", first.reason, e)
		}
		for j := i + 1; j < len(admissionFailures); j++ {
			second := admissionFailures[j].reason
			if e := ask(0, j, i); e == nil || e.reason != first.reason {
				t.Errorf("%s and %s: %+v", first.reason, second, e)
			}
			if e := ask(2000000000, j, i); first.reason == "OutOfephemeral-storage" && second != "AppArmor" && second != "PodFeatureUnsupported" && second != "NodeShutdown" && (e == nil || e.reason != second) {
				t.Errorf("critical, %s and %s: %+v", first.reason, second, e)
			}
		}
	}
	var counted dto.Metric
	if err := k.metrics.managers.memoryPinningErrors.Write(&counted); err != nil || counted.GetCounter().GetValue() == 0 {
		t.Errorf("memory that was not to be had is not counted: %v", err)
	}
}

func TestPredicates(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("3")}}}
	with := func(r corev1.ResourceRequirements) *corev1.Pod {
		p := podtest.Pod("p", "c")
		p.Spec.Containers[0].Resources = r
		return p
	}
	two := []*corev1.Pod{podtest.Pod("a", "c"), podtest.Pod("b", "c")}
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string
	}{
		{"fits", podtest.Pod("p", "c"), two, ""},
		{"cpu", with(podtest.Resources("3", "", "", "")), nil, "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{"what others use", with(podtest.Resources("1", "", "", "")), []*corev1.Pod{with(podtest.Resources("1500m", "", "", ""))},
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"},
		{"pods", podtest.Pod("p", "c"), append(two, podtest.Pod("d", "c")), "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
	} {
		got := ""
		if r := admitResources(c.pod, c.others, n); r != nil {
			got = r.reason + ": " + r.message
		}
		if got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// TestAdmissionUnderPressure: what is short keeps pods off, but for those that upstream lets in.
func TestAdmissionUnderPressure(t *testing.T) {
	burstable := podtest.Pod("p", "c")
	burstable.Spec.Containers[0].Resources = podtest.Resources("1", "", "", "")
	for _, c := range []struct {
		pod   *corev1.Pod
		p     pressure
		taken bool
	}{
		{podtest.Pod("p", "c"), pressure{disk: true}, false}, {podtest.Pod("p", "c"), pressure{memory: true}, false},
		{burstable, pressure{memory: true}, true}, {burstable, pressure{memory: true, pids: true}, false},
	} {
		if r := admitPressure(c.pod, &c.p); (r == nil) != c.taken {
			t.Errorf("%+v: %v", c.p, r)
		}
	}
}

// TestCriticalPodPreempts: a critical pod takes the room of others, and is rejected where
// there is none to take.
func TestCriticalPodPreempts(t *testing.T) {
	n := newNode(t)
	n.start()
	cpus := int64(0)
	n.until("the node", func() bool {
		if have := n.k.node.Load(); have != nil {
			cpus = have.Status.Allocatable.Cpu().MilliValue()
		}
		return cpus > 0
	})
	asking := func(name string, milli, priority int64) *corev1.Pod {
		p := podtest.Pod(name, name)
		p.Spec.Priority = new(int32(priority))
		list := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list}
		return p
	}
	n.api.addPod(asking("small", 100, 0))
	n.api.addPod(asking("large", cpus-200, 0))
	n.until("the pods", func() bool { return n.ready("small")() && n.ready("large")() })
	n.api.addPod(asking("critical", cpus/2, 2000001000))
	n.until("the critical pod", n.ready("critical"))
	n.until("the other one gone", func() bool { return n.api.pod("large").Status.Phase == corev1.PodSucceeded })
	s := n.api.pod("large").Status
	c := podstatus.FindCondition(s.Conditions, corev1.DisruptionTarget)
	if s.Reason != "" || s.Message != "" || c == nil || c.Reason != "TerminationByKubelet" || c.Message != "Pod was preempted by Kubelet to accommodate a critical pod." {
		t.Errorf("%+v", s)
	}
	if n.api.pod("small").Status.Phase != corev1.PodRunning {
		t.Error("one too many was preempted")
	}
	n.api.addPod(asking("impossible", 2*cpus, 2000001000))
	n.until("a critical pod without room", func() bool { return n.api.pod("impossible").Status.Reason == "UnexpectedAdmissionError" })
}

// TestCriticalPodWaitsForRoom: a critical pod begins when the pods that go for it have ended, or
// is deleted before that; what has not ended is not counted.
func TestCriticalPodWaitsForRoom(t *testing.T) {
	n := newNode(t)
	release := n.hang("victim")
	n.start()
	n.until("the node", func() bool { return n.k.node.Load() != nil && !n.k.node.Load().Status.Allocatable.Cpu().IsZero() })
	asking := func(p *corev1.Pod, milli, priority int64) *corev1.Pod {
		p.Spec.Priority = new(int32(priority))
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
		return p
	}
	cpus := n.k.node.Load().Status.Allocatable.Cpu().MilliValue()
	n.api.addPod(asking(lingering("victim", 600), cpus, 0))
	n.until("the victim", n.ready("victim"))
	for _, name := range []string{"critical", "deleted"} {
		n.api.addPod(asking(podtest.Pod(name, name), cpus/4, 2000001000))
		n.until(name+" is taken", func() bool { return n.api.pod(name).Status.StartTime != nil })
	}
	n.until("the victim ends", n.sent("Killing: Stopping container victim"))
	n.api.deletePod("deleted")
	n.until("the other one is gone", func() bool { return n.api.pod("deleted") == nil })
	preempted := func() float64 { return total(asked(t, n.k, "/metrics")["kubelet_preemptions"], "") }
	if calls := n.rt.Calls(); slices.Contains(calls, "RunPodSandbox critical") || slices.Contains(calls, "RunPodSandbox deleted") || preempted() != 0 {
		t.Fatalf("%v preempted, calls %v", preempted(), calls)
	}
	release("victim")
	n.until("the critical pod", n.ready("critical"))
	n.until("counted once", func() bool { return preempted() == 1 })
	calls := n.rt.Calls()
	if a, b := slices.Index(calls, "StopPodSandbox victim"), slices.Index(calls, "RunPodSandbox critical"); a < 0 || b < a {
		t.Errorf("calls %v", calls)
	}
	if got := n.api.events(); slices.Index(got, "Preempting: Preempted in order to admit critical pod") < 0 {
		t.Errorf("events %v", got)
	}
}

// TestVictimsHaveTheirTime: a critical pod does not wait longer for another to end than its
// grace and half of it.
func TestVictimsHaveTheirTime(t *testing.T) {
	k := admitting(t)
	synctest.Test(t, func(t *testing.T) {
		k.ctx = t.Context()
		v := lingering("victim", 60)
		k.workers[v.UID] = newWorker(k, v)
		a := &admission{k: k, pod: podtest.Pod("critical", "c"), victims: []*corev1.Pod{v}, missing: []preemption.Requirement{{Resource: corev1.ResourceCPU}}}
		room := a.preempt()
		time.Sleep(89 * time.Second)
		if room.isOpen() {
			t.Error("does not wait for as long")
		}
		time.Sleep(2 * time.Second)
		if !room.isOpen() {
			t.Error("still waits")
		}
		var counted dto.Metric
		if err := k.metrics.preemptions.WithLabelValues("cpu").Write(&counted); err != nil || counted.GetCounter().GetValue() != 0 {
			t.Errorf("it is counted: %v", err)
		}
	})
}

// TestPreemptionIsLast: nobody goes for a critical pod that is not taken after all.
func TestPreemptionIsLast(t *testing.T) {
	k := admitting(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "pods": resource.MustParse("9")}
	k.node.Store(node)
	asking := func(name string, priority int32) *corev1.Pod {
		p := podtest.Pod(name, "c")
		p.Spec.Containers[0].Resources, p.Spec.Priority = podtest.Resources("3", "", "", ""), &priority
		return p
	}
	w := newWorker(k, asking("other", 0))
	k.workers[w.uid] = w
	k.shuttingDown.Store(true)
	if _, e := k.admit(asking("critical", 2000000000)); e == nil || e.reason != "NodeShutdown" || w.inbox.end != nil {
		t.Errorf("while the node shuts down %+v, and the other pod %+v", e, w.inbox.end)
	}
	k.shuttingDown.Store(false)
	if _, e := k.admit(asking("critical", 2000000000)); e != nil || w.inbox.end == nil || w.inbox.end.reason != "Preempting" {
		t.Errorf("%+v, and the other pod %+v", e, w.inbox.end)
	}
}

// TestAppArmor: where the kernel does not confine by AppArmor, nothing runs that asks for it.
func TestAppArmor(t *testing.T) {
	of := func(kind corev1.AppArmorProfileType) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: kind}
	}
	for _, c := range []struct {
		name    string
		change  func(*corev1.Pod)
		refused bool
	}{
		{"no profile", func(*corev1.Pod) {}, false},
		{"none wanted", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: of(corev1.AppArmorProfileTypeUnconfined)}
		}, false},
		{"the pod's", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: of(corev1.AppArmorProfileTypeRuntimeDefault)}
		}, true},
		{"an init container's", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{AppArmorProfile: of(corev1.AppArmorProfileTypeLocalhost)}}}
		}, true},
		{"by annotation", func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c": corev1.DeprecatedAppArmorBetaProfileRuntimeDefault}
		}, true},
	} {
		pod := podtest.Pod("p", "c")
		c.change(pod)
		if r := admitAppArmor(pod, false); (r != nil) != c.refused || r != nil && r.reason != "AppArmor" {
			t.Errorf("%s: %v", c.name, r)
		}
		if r := admitAppArmor(pod, true); r != nil {
			t.Errorf("%s, where there is AppArmor: %v", c.name, r)
		}
	}
}

// TestShortOf: of several resources that a node has too little of, the one that upstream looks
// at first is named.
func TestShortOf(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	requests := corev1.ResourceList{}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	for _, name := range []corev1.ResourceName{"amd.com/gpu", "hugepages-2Mi", corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourceCPU} {
		requests[name], node.Status.Allocatable[name] = resource.MustParse("2"), resource.MustParse("1")
	}
	p := podtest.Pod("p", "c")
	p.Spec.Containers[0].Resources.Requests = requests
	var got []string
	for _, s := range short(p, nil, node) {
		got = append(got, string(s.name))
	}
	if want := []string{"cpu", "memory", "ephemeral-storage", "amd.com/gpu", "hugepages-2Mi"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestNewLabels: a pod is taken that is bound for a label which the node has just got, though
// the watch of Nodes has not told of it yet.
func TestNewLabels(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	const path = "/api/v1/nodes/n1"
	n.until("the Node", func() bool { return n.k.node.Load() != nil })
	stale := n.k.node.Load()
	n.api.mu.Lock()
	b, err := json.Marshal(n.api.objects[path])
	var o map[string]any
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		n.api.mu.Unlock()
		t.Fatal(err)
	}
	n.api.version++
	meta := o["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(n.api.version)
	labels, _ := meta["labels"].(map[string]any)
	if labels == nil {
		labels = map[string]any{}
		meta["labels"] = labels
	}
	labels["disk"] = "ssd"
	n.api.objects[path] = o // and no watch tells of it
	n.api.mu.Unlock()
	fits, not := podtest.Pod("fits", "a"), podtest.Pod("not", "b")
	fits.Spec.NodeSelector, not.Spec.NodeSelector = map[string]string{"disk": "ssd"}, map[string]string{"disk": "hdd"}
	n.k.node.Store(stale) // also if an answer to a write has told of it
	n.k.podChanged(fits)
	n.api.addPod(fits)
	n.until("ready", n.ready("fits"))
	n.api.addPod(not)
	n.until("rejected", func() bool {
		s := n.api.pod("not").Status
		return s.Phase == corev1.PodFailed && s.Reason == "NodeAffinity"
	})
}
