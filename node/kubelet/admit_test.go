package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"knarr/node/kubelet/allocation"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
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
		e := k.admit(p)
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

func TestAdmission(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"disk": "ssd"}}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("3")}}}
	with := func(f func(*corev1.Pod)) *corev1.Pod { p := podtest.Pod("p", "c"); f(p); return p }
	port := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		p      pressure
		reason string
		text   string
	}{
		{name: "fits", pod: podtest.Pod("p", "c")},
		{name: "cpu", pod: with(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = podtest.Resources("3", "", "", "") }), reason: "OutOfcpu",
			text: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{name: "pods", pod: podtest.Pod("p", "c"), others: []*corev1.Pod{podtest.Pod("a", "c"), podtest.Pod("b", "c"), podtest.Pod("d", "c")}, reason: "OutOfpods"},
		{name: "selector", pod: with(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }), reason: "NodeAffinity",
			text: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{name: "port", pod: with(port), others: []*corev1.Pod{with(port)}, reason: "NodePorts"},
		{name: "sysctl", pod: with(func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}}
		}), reason: "SysctlForbidden", text: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{name: "disk pressure", pod: podtest.Pod("p", "c"), p: pressure{disk: true}, reason: "Evicted", text: "The node had condition: [DiskPressure]. "},
		{name: "memory pressure, burstable", pod: with(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = podtest.Resources("1", "", "", "") }), p: pressure{memory: true}},
		{name: "taint", pod: podtest.Pod("p", "c")},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := admission(c.pod, c.others, n, &c.p, nil)
			if r == nil {
				r = &rejection{}
			}
			if r.reason != c.reason || c.text != "" && r.message != c.text {
				t.Errorf("%+v", r)
			}
		})
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
	n.until("the other one gone", func() bool { return n.api.pod("large").Status.Reason == "Preempting" })
	s := n.api.pod("large").Status
	c := podstatus.FindCondition(s.Conditions, corev1.DisruptionTarget)
	if s.Phase != corev1.PodFailed || s.Message != "Preempted in order to admit critical pod" || c == nil || c.Message != "Pod was preempted by Kubelet to accommodate a critical pod." {
		t.Errorf("%+v", s)
	}
	if n.api.pod("small").Status.Phase != corev1.PodRunning {
		t.Error("one too many was preempted")
	}
	n.api.addPod(asking("impossible", 2*cpus, 2000001000))
	n.until("a critical pod without room", func() bool { return n.api.pod("impossible").Status.Reason == "UnexpectedAdmissionError" })
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
