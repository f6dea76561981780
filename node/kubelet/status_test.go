package kubelet

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func statusOf(p *corev1.Pod, v *view, change func(*statusInput)) corev1.PodStatus {
	yes := func(*container, *corev1.Container) bool { return true }
	in := statusInput{pod: p, old: &p.Status, view: v, started: yes, ready: yes, runtime: "fake",
		podIPs: []string{"10.0.0.9"}, hostIPs: []string{"10.0.0.1"}, now: time.Unix(1000, 0)}
	if change != nil {
		change(&in)
	}
	return podStatus(in)
}

func TestPhase(t *testing.T) {
	never, onFailure := corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	for _, c := range []struct {
		name     string
		pod      *corev1.Pod
		view     *view
		terminal bool
		want     corev1.PodPhase
	}{
		{"nothing yet", pod("p", "a"), &view{}, false, corev1.PodPending},
		{"running", pod("p", "a"), box(ran("a", running, 0)), false, corev1.PodRunning},
		{"one to go", pod("p", "a", "b"), box(ran("a", running, 0)), false, corev1.PodPending},
		{"ended, will restart", pod("p", "a"), box(ran("a", exited, 1)), false, corev1.PodRunning},
		{"ended for good", pod("p", "a"), box(ran("a", exited, 1)), true, corev1.PodFailed},
		{"succeeded", policy(pod("p", "a"), never), box(ran("a", exited, 0)), false, corev1.PodSucceeded},
		{"failed", policy(pod("p", "a"), never), box(ran("a", exited, 1)), false, corev1.PodFailed},
		{"failed, retried", policy(pod("p", "a"), onFailure), box(ran("a", exited, 1)), false, corev1.PodRunning},
		{"half failed", policy(pod("p", "a", "b"), never), box(ran("a", exited, 1), ran("b", exited, 0)), false, corev1.PodFailed},
		{"in init", withInit(pod("p", "a"), "i"), box(ran("i", running, 0)), false, corev1.PodPending},
		{"init failed", policy(withInit(pod("p", "a"), "i"), never), box(ran("i", exited, 1)), false, corev1.PodFailed},
		{"init failed, retried", withInit(pod("p", "a"), "i"), box(ran("i", exited, 1)), false, corev1.PodPending},
		{"only the sidecar runs", withInit(pod("p", "a"), "s"), box(ran("s", running, 0)), false, corev1.PodPending},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := statusOf(c.pod, c.view, func(in *statusInput) {
				if c.terminal {
					in.terminal, in.ended = true, &ending{}
				}
			})
			if s.Phase != c.want {
				t.Errorf("phase %s, want %s", s.Phase, c.want)
			}
		})
	}
}

func TestStatusOfARunningPod(t *testing.T) {
	s := statusOf(pod("p", "a"), box(ran("a", running, 0)), nil)
	for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodScheduled, corev1.PodReadyToStartContainers} {
		if o := findCondition(s.Conditions, c); o == nil || o.Status != corev1.ConditionTrue {
			t.Errorf("%s: %+v", c, o)
		}
	}
	cs := s.ContainerStatuses[0]
	if cs.ContainerID != "fake://id-a" || !cs.Ready || cs.Started == nil || !*cs.Started || cs.State.Running == nil {
		t.Errorf("%+v", cs)
	}
	if s.PodIP != "10.0.0.9" || s.HostIP != "10.0.0.1" || s.StartTime == nil {
		t.Errorf("%+v", s)
	}
}

func TestUnreadyIsNamed(t *testing.T) {
	s := statusOf(pod("p", "a", "b"), box(ran("a", running, 0), ran("b", running, 0)), func(in *statusInput) {
		in.ready = func(c *container, _ *corev1.Container) bool { return c.name() == "a" }
	})
	c := findCondition(s.Conditions, corev1.PodReady)
	if c.Status != corev1.ConditionFalse || c.Reason != "ContainersNotReady" || c.Message != "containers with unready status: [b]" {
		t.Errorf("%+v", c)
	}
}

func TestGatesAndForeignConditions(t *testing.T) {
	p := pod("p", "a")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}}
	v := box(ran("a", running, 0))
	c := findCondition(statusOf(p, v, nil).Conditions, corev1.PodReady)
	if c.Status != corev1.ConditionFalse || c.Message != `corresponding condition of pod readiness gate "x/y" does not exist.` {
		t.Errorf("%+v", c)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: "x/y", Status: corev1.ConditionTrue, Reason: "theirs"}}
	s := statusOf(p, v, nil)
	if c := findCondition(s.Conditions, corev1.PodReady); c.Status != corev1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	if c := findCondition(s.Conditions, "x/y"); c == nil || c.Reason != "theirs" {
		t.Errorf("the condition of another was not kept: %+v", c)
	}
}

func TestTransitionTimes(t *testing.T) {
	p := pod("p", "a")
	first := statusOf(p, box(ran("a", running, 0)), nil)
	p.Status = first
	later := func(in *statusInput) { in.now = in.now.Add(time.Minute) }
	if second := statusOf(p, box(ran("a", running, 0)), later); !sameStatus(&first, &second) {
		t.Errorf("nothing changed, but the status did:\n%+v\n%+v", first, second)
	}
	third := statusOf(p, box(ran("a", exited, 1)), later)
	if c := findCondition(third.Conditions, corev1.PodReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: time.Unix(1060, 0)}) {
		t.Errorf("%v", c.LastTransitionTime)
	}
}

func TestWaitingHidesTerminated(t *testing.T) {
	s := statusOf(pod("p", "a"), box(ran("a", exited, 7)), func(in *statusInput) {
		in.waits = map[string]waitError{"a": {"CrashLoopBackOff", "m"}}
		in.messages = map[string]string{"id-a": "last words"}
	})
	c := s.ContainerStatuses[0]
	if c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" || c.LastTerminationState.Terminated.Message != "last words" || c.LastTerminationState.Terminated.ExitCode != 7 {
		t.Errorf("%+v", c)
	}
}

func TestRejected(t *testing.T) {
	s := statusOf(pod("p", "a"), &view{}, func(in *statusInput) {
		in.terminal, in.ended = true, &ending{reason: "OutOfcpu", message: "no", rejected: true}
	})
	if s.Phase != corev1.PodFailed || s.Reason != "OutOfcpu" || s.Message != "Pod was rejected: no" {
		t.Errorf("%+v", s)
	}
}

func TestSortedByName(t *testing.T) {
	s := statusOf(pod("p", "b", "a"), box(), nil)
	if !slices.IsSortedFunc(s.ContainerStatuses, func(a, b corev1.ContainerStatus) int { return int(a.Name[0]) - int(b.Name[0]) }) {
		t.Error("not sorted")
	}
}

func TestResizes(t *testing.T) {
	c := ran("a", running, 0)
	c.Resources = &cri.ContainerResources{Linux: &cri.LinuxContainerResources{CpuShares: 102, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20}}
	v := box(c)
	want := proto.Clone(c.Resources.Linux).(*cri.LinuxContainerResources)
	if got := resizes(pod("p", "a"), v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want }); len(got) != 0 {
		t.Errorf("nothing to resize, got %v", got)
	}
	p := pod("p", "a")
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
