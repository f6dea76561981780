package podstatus

import (
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/equal"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

func statusOf(p *corev1.Pod, v *runtimestate.Pod, change func(*Input)) corev1.PodStatus {
	yes := func(*runtimestate.Container, *corev1.Container) bool { return true }
	in := Input{Pod: p, Old: &p.Status, Observed: v, Started: yes, Ready: yes, RuntimeName: "fake",
		PodIPs: []string{"10.0.0.9"}, HostIPs: []string{"10.0.0.1"}, Now: time.Unix(1000, 0)}
	if change != nil {
		change(&in)
	}
	return Compute(in)
}

func TestStatusOfARunningPod(t *testing.T) {
	s := statusOf(podtest.Pod("p", "a"), podtest.Observed(podtest.Container("a", podtest.Running, 0)), nil)
	for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodScheduled, corev1.PodReadyToStartContainers} {
		if o := FindCondition(s.Conditions, c); o == nil || o.Status != corev1.ConditionTrue {
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
	s := statusOf(podtest.Pod("p", "a", "b"), podtest.Observed(podtest.Container("a", podtest.Running, 0), podtest.Container("b", podtest.Running, 0)), func(in *Input) {
		in.Ready = func(c *runtimestate.Container, _ *corev1.Container) bool { return c.Name() == "a" }
	})
	c := FindCondition(s.Conditions, corev1.PodReady)
	if c.Status != corev1.ConditionFalse || c.Reason != "ContainersNotReady" || c.Message != "containers with unready status: [b]" {
		t.Errorf("%+v", c)
	}
}

func TestGatesAndForeignConditions(t *testing.T) {
	p := podtest.Pod("p", "a")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}}
	v := podtest.Observed(podtest.Container("a", podtest.Running, 0))
	c := FindCondition(statusOf(p, v, nil).Conditions, corev1.PodReady)
	if c.Status != corev1.ConditionFalse || c.Message != `corresponding condition of pod readiness gate "x/y" does not exist.` {
		t.Errorf("%+v", c)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: "x/y", Status: corev1.ConditionTrue, Reason: "theirs"}}
	s := statusOf(p, v, nil)
	if c := FindCondition(s.Conditions, corev1.PodReady); c.Status != corev1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	if c := FindCondition(s.Conditions, "x/y"); c == nil || c.Reason != "theirs" {
		t.Errorf("the condition of another was not kept: %+v", c)
	}
}

func TestTransitionTimes(t *testing.T) {
	p := podtest.Pod("p", "a")
	first := statusOf(p, podtest.Observed(podtest.Container("a", podtest.Running, 0)), nil)
	p.Status = first
	later := func(in *Input) { in.Now = in.Now.Add(time.Minute) }
	if second := statusOf(p, podtest.Observed(podtest.Container("a", podtest.Running, 0)), later); !equal.Objects(&first, &second) {
		t.Errorf("nothing changed, but the status did:\n%+v\n%+v", first, second)
	}
	third := statusOf(p, podtest.Observed(podtest.Container("a", podtest.Exited, 1)), later)
	if c := FindCondition(third.Conditions, corev1.PodReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: time.Unix(1060, 0)}) {
		t.Errorf("%v", c.LastTransitionTime)
	}
}

func TestWaitingHidesTerminated(t *testing.T) {
	s := statusOf(podtest.Pod("p", "a"), podtest.Observed(podtest.Container("a", podtest.Exited, 7)), func(in *Input) {
		in.Waiting = map[string]corev1.ContainerStateWaiting{"a": {Reason: "CrashLoopBackOff", Message: "m"}}
		in.Messages = map[string]string{"id-a": "last words"}
	})
	c := s.ContainerStatuses[0]
	if c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" || c.LastTerminationState.Terminated.Message != "last words" || c.LastTerminationState.Terminated.ExitCode != 7 {
		t.Errorf("%+v", c)
	}
}

func TestRejected(t *testing.T) {
	s := statusOf(podtest.Pod("p", "a"), &runtimestate.Pod{}, func(in *Input) {
		in.Terminal, in.Ended = true, &Ending{Reason: "OutOfcpu", Message: "no", Rejected: true}
	})
	if s.Phase != corev1.PodFailed || s.Reason != "OutOfcpu" || s.Message != "Pod was rejected: no" {
		t.Errorf("%+v", s)
	}
}

// TestDisrupted: a pod that the kubelet ended has failed with its reason, but for one that had
// to go and whose containers all ended well; that it had to is shown once it has ended.
func TestDisrupted(t *testing.T) {
	preempted := &Ending{Reason: "Preempting", Message: "m", Disruption: "TerminationByKubelet", Why: "why"}
	static := podtest.Pod("p", "a")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		state   *runtimestate.Container
		ended   *Ending
		old     corev1.PodStatus
		phase   corev1.PodPhase
		reason  string
		message string
		target  string
	}{
		"being ended":           {nil, podtest.Container("a", podtest.Running, 0), preempted, corev1.PodStatus{Phase: corev1.PodRunning}, corev1.PodRunning, "", "", ""},
		"ended well":            {nil, podtest.Container("a", podtest.Exited, 0), preempted, corev1.PodStatus{Phase: corev1.PodRunning}, corev1.PodSucceeded, "", "", "why"},
		"killed":                {nil, podtest.Container("a", podtest.Exited, 137), preempted, corev1.PodStatus{Phase: corev1.PodRunning}, corev1.PodFailed, "Preempting", "m", "why"},
		"never began":           {nil, nil, preempted, corev1.PodStatus{Phase: corev1.PodPending}, corev1.PodFailed, "Preempting", "m", "why"},
		"static, ended well":    {static, podtest.Container("a", podtest.Exited, 0), preempted, corev1.PodStatus{Phase: corev1.PodRunning}, corev1.PodFailed, "Preempting", "m", "why"},
		"too long":              {nil, podtest.Container("a", podtest.Exited, 0), &Ending{Reason: "DeadlineExceeded", Message: "m"}, corev1.PodStatus{Phase: corev1.PodRunning}, corev1.PodFailed, "DeadlineExceeded", "m", ""},
		"shown as failed":       {nil, podtest.Container("a", podtest.Exited, 0), preempted, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "r"}, corev1.PodFailed, "Preempting", "m", ""},
		"shown as succeeded":    {nil, podtest.Container("a", podtest.Exited, 0), preempted, corev1.PodStatus{Phase: corev1.PodSucceeded, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Message: "why"}}}, corev1.PodSucceeded, "", "", "why"},
		"asked to go by others": {nil, podtest.Container("a", podtest.Exited, 0), preempted, corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Message: "theirs"}}}, corev1.PodSucceeded, "", "", "why"},
	} {
		if c.pod == nil {
			c.pod = podtest.Pod("p", "a")
		}
		v := podtest.Observed()
		if c.state != nil {
			v = podtest.Observed(c.state)
		}
		s := statusOf(c.pod, v, func(in *Input) {
			in.Old, in.Ended, in.Terminal = &c.old, c.ended, c.state == nil || c.state.State != podtest.Running
		})
		target := ""
		if d := FindCondition(s.Conditions, corev1.DisruptionTarget); d != nil {
			target = d.Message
		}
		if s.Phase != c.phase || s.Reason != c.reason || s.Message != c.message || target != c.target {
			t.Errorf("%s: %s, %q, %q, %q", name, s.Phase, s.Reason, s.Message, target)
		}
	}
}

// TestRejectedBefore: a pod that was rejected before a restart stays as it is shown; none
// of its containers is being created.
func TestRejectedBefore(t *testing.T) {
	for _, ended := range []*Ending{nil, {}} {
		s := statusOf(podtest.Pod("p", "c"), &runtimestate.Pod{}, func(in *Input) {
			in.Old = &corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: no"}
			in.API, in.Terminal, in.Ended = in.Old, ended != nil, ended
		})
		if len(s.ContainerStatuses) > 0 || s.Reason != "OutOfcpu" || s.Message != "Pod was rejected: no" || len(s.Conditions) > 0 {
			t.Errorf("%+v", s)
		}
	}
}

func TestSortedByName(t *testing.T) {
	s := statusOf(podtest.Pod("p", "b", "a"), podtest.Observed(), nil)
	if !slices.IsSortedFunc(s.ContainerStatuses, func(a, b corev1.ContainerStatus) int { return int(a.Name[0]) - int(b.Name[0]) }) {
		t.Error("not sorted")
	}
}

// ownership says of each field of a pod's status whether the kubelet writes it
// or keeps what others wrote.
var ownership = map[string]string{
	"ObservedGeneration": "ours", "Phase": "ours", "Conditions": "mixed", "Message": "ours", "Reason": "ours",
	"HostIP": "ours", "HostIPs": "ours", "PodIP": "ours", "PodIPs": "ours", "StartTime": "ours", "QOSClass": "ours",
	"InitContainerStatuses": "ours", "ContainerStatuses": "ours", "EphemeralContainerStatuses": "ours",
	"NominatedNodeName": "kept", "Resize": "kept", "ResourceClaimStatuses": "kept", "ExtendedResourceClaimStatus": "kept",
	"AllocatedResources": "ours", "Resources": "ours", "NodeAllocatableResourceClaimStatuses": "kept",
}

// TestStatusOfOthers: what other components wrote into a pod's status since the
// kubelet last read it stays, also in a pod that is rejected.
func TestStatusOfOthers(t *testing.T) {
	api := corev1.PodStatus{
		NominatedNodeName: "n", Resize: corev1.PodResizeStatusDeferred,
		ResourceClaimStatuses:                []corev1.PodResourceClaimStatus{{Name: "gpu"}},
		ExtendedResourceClaimStatus:          &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"},
		NodeAllocatableResourceClaimStatuses: []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "claim"}},
		Conditions:                           []corev1.PodCondition{{Type: "example.com/gate", Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "stale"}},
	}
	for what, change := range map[string]func(*Input){
		"running":  func(*Input) {},
		"ended":    func(in *Input) { in.Ended, in.Terminal = &Ending{Reason: "Evicted"}, true },
		"rejected": func(in *Input) { in.Ended = &Ending{Reason: "OutOfcpu", Rejected: true} },
	} {
		s := statusOf(podtest.Pod("p", "a"), podtest.Observed(podtest.Container("a", podtest.Running, 0)), func(in *Input) { in.API = &api; change(in) })
		got, was := reflect.ValueOf(s), reflect.ValueOf(api)
		for i := range got.NumField() {
			name := got.Type().Field(i).Name
			switch ownership[name] {
			case "kept":
				if was.Field(i).IsZero() {
					t.Errorf("the test has no value of %s", name)
				}
				if !reflect.DeepEqual(got.Field(i).Interface(), was.Field(i).Interface()) {
					t.Errorf("%s: %s is %v, others wrote %v", what, name, got.Field(i), was.Field(i))
				}
			case "":
				t.Errorf("nobody said who writes %s", name)
			}
		}
		if c := FindCondition(s.Conditions, "example.com/gate"); c == nil || c.Status != corev1.ConditionTrue {
			t.Errorf("%s: the condition of others is %v", what, c)
		}
		if c := FindCondition(s.Conditions, corev1.PodReady); c != nil && c.Reason == "stale" {
			t.Errorf("%s: an own condition is stale", what)
		}
	}
}

// TestEndedBeforeItBegan: a pod that was deleted before a container of it ran has failed;
// a Job counts it, and others who hold it by a finalizer let it go. Of a static pod only the
// containers have; its phase stays, also when its status is made once more.
func TestEndedBeforeItBegan(t *testing.T) {
	for name, c := range map[string]struct {
		terminal bool
		source   string
		want     corev1.PodPhase
	}{
		"being stopped": {false, "api", corev1.PodPending},
		"over":          {true, "api", corev1.PodFailed},
		"static":        {true, "file", corev1.PodPending},
	} {
		p := podtest.Pod("p", "a")
		p.Annotations = map[string]string{podspec.ConfigSource: c.source}
		for range 2 {
			p.Status = statusOf(p, podtest.Observed(), func(in *Input) { in.Terminal, in.Ended = c.terminal, &Ending{} })
			if s := p.Status; s.Phase != c.want || (s.ContainerStatuses[0].State.Waiting == nil) != c.terminal {
				t.Errorf("%s: %s, %+v", name, s.Phase, s.ContainerStatuses)
			}
		}
	}
}

// TestReplaced: a container that was told to end for another to take its place is shown as
// running until that one does, or waits, and does not end the pod by its exit code.
func TestReplaced(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, c := range []struct {
		name     string
		replaced bool
		code     int32
		waits    string
		ended    *Ending
		phase    corev1.PodPhase
		state    string
	}{
		{name: "by itself", phase: corev1.PodSucceeded, state: "terminated"},
		{name: "by itself, failed", code: 1, phase: corev1.PodFailed, state: "terminated"},
		{name: "told to", replaced: true, phase: corev1.PodRunning, state: "running"},
		{name: "told to, failed", replaced: true, code: 1, phase: corev1.PodRunning, state: "running"},
		{name: "and the next one waits", replaced: true, waits: "ErrImagePull", phase: corev1.PodRunning, state: "waiting"},
		{name: "and the pod ends", replaced: true, ended: &Ending{}, phase: corev1.PodSucceeded, state: "terminated"},
	} {
		v := podtest.Observed(podtest.Container("a", podtest.Exited, c.code))
		v.Containers[0].Replaced = c.replaced
		s := statusOf(podtest.WithRestartPolicy(podtest.Pod("p", "a"), corev1.RestartPolicyNever), v, func(in *Input) {
			in.Old = &corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: running, Ready: true}}}
			in.Ended, in.Terminal = c.ended, c.ended != nil
			if c.waits != "" {
				in.Waiting = map[string]corev1.ContainerStateWaiting{"a": {Reason: c.waits}}
			}
		})
		is, state := s.ContainerStatuses[0], "terminated"
		switch {
		case is.State.Running != nil:
			state = "running"
		case is.State.Waiting != nil:
			state = "waiting"
		}
		if s.Phase != c.phase || state != c.state || is.Ready {
			t.Errorf("%s: %s, %+v", c.name, s.Phase, is)
		}
		if lasts := is.LastTerminationState.Terminated != nil; lasts != (c.waits != "") {
			t.Errorf("%s: last state %+v", c.name, is.LastTerminationState)
		}
	}
}

// TestUnmounted: a sandbox alone does not make a pod ready to start its containers.
func TestUnmounted(t *testing.T) {
	for unmounted, want := range map[bool]corev1.ConditionStatus{true: corev1.ConditionFalse, false: corev1.ConditionTrue} {
		s := statusOf(podtest.Pod("p", "a"), podtest.Observed(), func(in *Input) { in.Unmounted = unmounted })
		if c := FindCondition(s.Conditions, corev1.PodReadyToStartContainers); c == nil || c.Status != want {
			t.Errorf("%v: %+v", unmounted, c)
		}
	}
}

// TestRecursiveReadOnly: what was asked for if possible is shown as it was done.
func TestRecursiveReadOnly(t *testing.T) {
	enabled, possible, disabled := corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyDisabled
	for _, c := range []struct {
		asked *corev1.RecursiveReadOnlyMode
		can   bool
		want  corev1.RecursiveReadOnlyMode
	}{{nil, true, disabled}, {&disabled, true, disabled}, {&possible, false, disabled}, {&possible, true, enabled}, {&enabled, true, enabled}} {
		p := podtest.Pod("p", "a")
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", ReadOnly: true, RecursiveReadOnly: c.asked}, {Name: "w"}}
		m := statusOf(p, podtest.Observed(), func(in *Input) { in.RecursiveReadOnly = func() bool { return c.can } }).ContainerStatuses[0].VolumeMounts
		if m[0].RecursiveReadOnly == nil || *m[0].RecursiveReadOnly != c.want || m[1].RecursiveReadOnly != nil {
			t.Errorf("%v: %+v", c, m)
		}
	}
}

// TestInitialized: a pod that came past its init containers has, also while they begin anew,
// in whatever state its containers are.
func TestInitialized(t *testing.T) {
	pod := podtest.Pod("p", "c")
	pod.Spec.InitContainers = []corev1.Container{{Name: "i"}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for _, c := range []struct {
		init corev1.ContainerStatus
		main corev1.ContainerState
		want corev1.ConditionStatus
	}{
		{corev1.ContainerStatus{Name: "i", State: waits}, waits, corev1.ConditionFalse},
		{corev1.ContainerStatus{Name: "i", State: ended, Ready: true}, waits, corev1.ConditionTrue},
		{corev1.ContainerStatus{Name: "i", State: waits}, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.ConditionTrue},
		{corev1.ContainerStatus{Name: "i", State: waits}, ended, corev1.ConditionTrue},
	} {
		all := []corev1.ContainerStatus{c.init, {Name: "c", State: c.main}}
		if got := initialized(pod, all, corev1.PodRunning).Status; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	in := Input{Pod: pod, Observed: podtest.Observed(), Now: time.Unix(1000, 0),
		Old: &corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}}}
	in.API = in.Old
	s := Compute(in)
	if c := FindCondition(s.Conditions, corev1.PodInitialized); c.Status != corev1.ConditionTrue {
		t.Errorf("in another sandbox: %+v", c)
	}
}
