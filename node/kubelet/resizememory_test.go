package kubelet

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
)

// TestResizeBelowUsage: a limit of memory below what is used is not set, the pod
// says why for as long as it asks for it, and the runtime is not asked meanwhile.
func TestResizeBelowUsage(t *testing.T) {
	n := newNode(t)
	n.rt.Memory = func(string) uint64 { return 20 << 20 }
	n.start()
	p := podtest.Pod("p", "c")
	p.Spec.Containers[0].Resources = podtest.Resources("", "64Mi", "", "64Mi")
	n.api.addPod(p)
	n.until("ready", n.ready("p"))
	updates := func() int {
		return len(slices.DeleteFunc(n.rt.Calls(), func(c string) bool { return !strings.HasPrefix(c, "UpdateContainerResources") }))
	}
	memory := func(amount string) map[string]any {
		return map[string]any{"requests": map[string]any{"memory": amount}, "limits": map[string]any{"memory": amount}}
	}
	condition := func() *corev1.PodCondition {
		return podstatus.FindCondition(n.api.pod("p").Status.Conditions, corev1.PodResizeInProgress)
	}

	n.resizeTo("p", memory("10Mi"))
	const want = `cannot decrease memory limits: attempting to set container "c" memory limit (10485760) below current usage (20971520)`
	n.until("refused", func() bool {
		c := condition()
		return c != nil && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonError && c.Message == want
	})
	n.until("said", func() bool {
		return slices.ContainsFunc(n.api.events(), func(e string) bool { return strings.HasPrefix(e, "ResizeError: Pod resize error: ") })
	})
	if got := n.rt.Resources("c").GetMemoryLimitInBytes(); got != 64<<20 || updates() != 0 {
		t.Errorf("limit %d after %d updates", got, updates())
	}

	n.resizeTo("p", memory("32Mi"))
	n.until("lowered", func() bool { return n.rt.Resources("c").GetMemoryLimitInBytes() == 32<<20 })
	n.until("done", func() bool { return condition() == nil })
	if updates() != 1 {
		t.Errorf("%d updates", updates())
	}
}

// TestResizeThatFails: what went wrong is shown until it goes well, which is not
// tried without a pause.
func TestResizeThatFails(t *testing.T) {
	n := newNode(t)
	var tried atomic.Bool
	n.rt.Fail = func(method string) error {
		if method == "UpdateContainerResources" && !tried.Swap(true) {
			return errors.New("broken")
		}
		return nil
	}
	n.start()
	n.api.addPod(cpus(podtest.Pod("p", "c"), "10m"))
	n.until("ready", n.ready("p"))
	n.resize("p", "20m")
	n.until("refused", func() bool {
		c := podstatus.FindCondition(n.api.pod("p").Status.Conditions, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	n.until("tried again", func() bool {
		return podstatus.FindCondition(n.api.pod("p").Status.Conditions, corev1.PodResizeInProgress) == nil
	})
}

// TestRoomToShrinkPod: the pod's group is looked at as its containers are, and only
// where the limit becomes smaller.
func TestRoomToShrinkPod(t *testing.T) {
	pod := podtest.Pod("p", "c")
	k := &Kubelet{cfg: Config{CgroupParent: "/kubepods"}}
	k.cgroups = unified(t, map[string]string{
		k.podCgroup(pod) + "/memory.current": "500", k.podCgroup(pod) + "/memory.max": "1000", k.podCgroup(pod) + "/cpu.stat": "",
	})
	for limit, want := range map[int64]string{
		0: "", 501: "", 1000: "", 2000: "",
		500: "cannot decrease memory limits: attempting to set pod memory limit (500) below current usage (500)",
	} {
		got := ""
		if err := k.roomToShrink(t.Context(), pod, cgroup.Limits{Memory: limit}, nil); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d: %q, want %q", limit, got, want)
		}
	}
	restart := resizing{restart: true, current: podtest.Container("c", podtest.Running, 0), want: &cri.LinuxContainerResources{MemoryLimitInBytes: 1}}
	if err := k.roomToShrink(t.Context(), pod, cgroup.Limits{}, []resizing{restart}); err != nil {
		t.Errorf("a container that begins anew: %v", err)
	}
}

// TestResizeRestartsForMemoryRequest: a container whose policy is to begin anew does
// so once for another request alone, and not for a restart of the kubelet.
func TestResizeRestartsForMemoryRequest(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	p := podtest.Pod("p", "c")
	p.Spec.Containers[0].Resources = podtest.Resources("", "10Mi", "", "64Mi")
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	n.api.addPod(p)
	n.until("ready", n.ready("p"))
	n.resizeTo("p", map[string]any{"requests": map[string]any{"memory": "20Mi"}, "limits": map[string]any{"memory": "64Mi"}})
	again := func() bool {
		s := n.api.pod("p").Status
		return s.ContainerStatuses[0].RestartCount == 1 && s.ContainerStatuses[0].State.Running != nil &&
			podstatus.FindCondition(s.Conditions, corev1.PodResizeInProgress) == nil
	}
	n.until("began anew", again)
	stop()
	n.start()
	n.api.addPod(podtest.Pod("other", "o"))
	n.until("ready", n.ready("other"))
	if !again() {
		t.Errorf("status %+v", n.api.pod("p").Status)
	}
}
