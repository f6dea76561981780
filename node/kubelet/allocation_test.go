package kubelet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
)

func cpus(p *corev1.Pod, request string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)}
	return p
}

// resize asks for another CPU request, as the resize subresource does.
func (n *node) resize(name, request string) {
	n.t.Helper()
	n.resizeAs(name, request, 2)
}

// resizeAs does so with a generation of the pod.
func (n *node) resizeAs(name, request string, generation int) {
	n.t.Helper()
	n.resizeTo(name, map[string]any{"requests": map[string]any{"cpu": request}}, generation)
}

// resizeTo asks for other resources of the first container.
func (n *node) resizeTo(name string, resources map[string]any, generation ...int) {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	path := "/api/v1/namespaces/ns/pods/" + name
	o := n.api.objects[path]
	o["metadata"].(map[string]any)["generation"] = append(generation, 2)[0]
	o["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["resources"] = resources
	n.api.put(path, o, "MODIFIED")
}

func (n *node) deferred(name string) func() bool {
	return func() bool {
		c := podstatus.FindCondition(n.api.pod(name).Status.Conditions, corev1.PodResizePending)
		return c != nil && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonDeferred
	}
}

// restarted ends a container and looks at what the next one got.
func (n *node) restarted(name, container string, shares int64) {
	n.t.Helper()
	before := n.api.pod(name).Status.ContainerStatuses[0].RestartCount
	n.rt.Exit(container, 1)
	n.until("restarted", func() bool {
		s := n.api.pod(name).Status.ContainerStatuses[0]
		return s.RestartCount == before+1 && s.State.Running != nil
	})
	if got := n.rt.Resources(container).GetCpuShares(); got != shares {
		n.t.Errorf("%s runs again with %d shares, want the allocated %d", container, got, shares)
	}
	if got := n.api.pod(name).Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue(); criconfig.CPUShares(got) != shares {
		n.t.Errorf("%s: allocatedResources %dm, want what gives %d shares", container, got, shares)
	}
}

// TestResizeThatDoesNotFit: what a node cannot give is not given at the next
// start of the container either, nor after a restart of the kubelet.
func TestResizeThatDoesNotFit(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	for _, name := range []string{"one", "two", "three", "four"} {
		n.api.addPod(cpus(podtest.Pod(name, "c-"+name), "10m"))
		n.until("ready", n.ready(name))
	}
	for _, name := range []string{"one", "two", "three"} {
		n.resize(name, "100000")
		n.until("put off", n.deferred(name))
	}
	n.restarted("one", "c-one", criconfig.CPUShares(10))
	n.resize("four", "20m")
	n.until("resized", func() bool { return n.rt.Resources("c-four").GetCpuShares() == criconfig.CPUShares(20) })
	n.until("shown", func() bool {
		return n.api.pod("four").Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == 20
	})

	for _, want := range []string{
		`ResizeDeferred: Pod resize Deferred: {"containers":[{"name":"c-one","resources":{"requests":{"cpu":"100k"}}}],"generation":2,"error":"Node didn't have enough resource: cpu, `,
		`ResizeStarted: Pod resize started: {"containers":[{"name":"c-four","resources":{"requests":{"cpu":"20m"}}}],"generation":2}`,
		`ResizeCompleted: Pod resize completed: {"containers":[{"name":"c-four","resources":{"requests":{"cpu":"20m"}}}],"generation":2}`,
	} {
		n.until("event "+want, func() bool {
			return slices.ContainsFunc(n.api.events(), func(e string) bool { return strings.HasPrefix(e, want) })
		})
	}
	// One that waits for its restart is given what fits for it.
	n.rt.Exit("c-four", 1)
	n.until("runs again", func() bool { return n.api.pod("four").Status.ContainerStatuses[0].RestartCount == 1 })
	n.rt.Exit("c-four", 1)
	n.until("waits", n.waits("four", "CrashLoopBackOff"))
	n.resize("four", "25m")
	n.until("given", func() bool {
		return n.api.pod("four").Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == 25
	})

	stop()
	n.resize("three", "30m") // while nobody looks
	stop = n.start()
	n.restarted("two", "c-two", criconfig.CPUShares(10))
	n.until("resized", func() bool { return n.rt.Resources("c-three").GetCpuShares() == criconfig.CPUShares(30) })

	// Of damaged state the rest is read from the API.
	stop()
	files, err := filepath.Glob(filepath.Join(n.dir, "kubelet", "allocated", "*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("allocations on disk: %v, %v", files, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	defer n.start()()
	n.api.addPod(cpus(podtest.Pod("five", "c-five"), "10m"))
	n.until("ready", n.ready("five"))
	n.until("still put off", n.deferred("two"))
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		n.api.deletePod(name)
		n.until("gone", func() bool { return n.api.pod(name) == nil })
	}
	n.until("forgotten", func() bool {
		files, _ := filepath.Glob(filepath.Join(n.dir, "kubelet", "allocated", "*"))
		return len(files) == 0
	})
}

// TestTwoResizes: one that the runtime does not do and one that there is no room for are both
// shown, each with the generation that asked for it, and the first one's end is told.
func TestTwoResizes(t *testing.T) {
	n := newNode(t)
	var refuse atomic.Bool
	refuse.Store(true)
	n.rt.Fail = func(method string) error {
		if method == "UpdatePodSandboxResources" && refuse.Load() {
			return status.Error(codes.FailedPrecondition, "the machine is as large as it gets")
		}
		return nil
	}
	defer n.start()()
	n.api.addPod(cpus(podtest.Pod("p", "c"), "10m"))
	n.until("ready", n.ready("p"))
	condition := func(of corev1.PodConditionType) *corev1.PodCondition {
		return podstatus.FindCondition(n.api.pod("p").Status.Conditions, of)
	}
	n.resize("p", "20m")
	n.until("refused", func() bool {
		c := condition(corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError && strings.Contains(c.Message, "as large as it gets") && c.ObservedGeneration == 2
	})
	n.resizeAs("p", "100000", 3)
	n.until("both", func() bool {
		pending, first := condition(corev1.PodResizePending), condition(corev1.PodResizeInProgress)
		return pending != nil && pending.Reason == corev1.PodReasonDeferred && pending.ObservedGeneration == 3 &&
			first != nil && first.Reason == corev1.PodReasonError && first.ObservedGeneration == 2
	})
	if got := n.rt.Resources("c").GetCpuShares(); got != criconfig.CPUShares(10) {
		t.Errorf("the container has %d shares though the runtime refused", got)
	}
	refuse.Store(false)
	n.until("done", func() bool {
		return condition(corev1.PodResizeInProgress) == nil && condition(corev1.PodResizePending) != nil
	})
	if c, s := n.rt.Resources("c").GetCpuShares(), n.rt.SandboxResources("p").GetCpuShares(); c != criconfig.CPUShares(20) || s != c {
		t.Errorf("the container has %d shares, its sandbox %d", c, s)
	}
	n.until("told", func() bool {
		return slices.ContainsFunc(n.api.events(), func(e string) bool {
			return strings.HasPrefix(e, "ResizeCompleted: ") && strings.Contains(e, `"generation":2`)
		})
	})
}

// TestRuntimeWithoutSandboxResources: a runtime that does not know of them resizes containers.
func TestRuntimeWithoutSandboxResources(t *testing.T) {
	for _, unknown := range []error{status.Error(codes.Unimplemented, "unknown method"), status.Error(codes.Unknown, "not implemented yet")} {
		n := newNode(t)
		n.rt.Fail = func(method string) error {
			if method == "UpdatePodSandboxResources" {
				return unknown
			}
			return nil
		}
		stop := n.start()
		n.api.addPod(cpus(podtest.Pod("p", "c"), "10m"))
		n.until("ready", n.ready("p"))
		n.resize("p", "20m")
		n.until("resized", func() bool { return n.rt.Resources("c").GetCpuShares() == criconfig.CPUShares(20) })
		stop()
	}
}
