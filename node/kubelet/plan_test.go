package kubelet

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type fakeProbes struct{ live, start map[string]verdict }

func (f fakeProbes) Liveness(id string) verdict { return f.live[id] }
func (f fakeProbes) Startup(id string) verdict  { return f.start[id] }

// box is a view of one ready sandbox with these containers.
func box(cs ...*container) *view {
	return &view{
		sandboxes: []sandbox{{&cri.PodSandboxStatus{Id: "s", Metadata: &cri.PodSandboxMetadata{}, State: cri.PodSandboxState_SANDBOX_READY,
			Network: &cri.PodSandboxNetworkStatus{Ip: "10.0.0.9"}}}},
		containers: cs,
	}
}

func ran(name string, state cri.ContainerState, code int32) *container {
	return &container{&cri.ContainerStatus{Id: "id-" + name, Labels: map[string]string{labelContainerName: name}, State: state, ExitCode: code,
		Image: &cri.ImageSpec{}, StartedAt: 1e9, FinishedAt: 2e9}, "s"}
}

const (
	running = cri.ContainerState_CONTAINER_RUNNING
	exited  = cri.ContainerState_CONTAINER_EXITED
	created = cri.ContainerState_CONTAINER_CREATED
)

func withInit(p *corev1.Pod, names ...string) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	for _, n := range names {
		c := corev1.Container{Name: n, Image: image}
		if n[0] == 's' {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	return p
}

func policy(p *corev1.Pod, r corev1.RestartPolicy) *corev1.Pod { p.Spec.RestartPolicy = r; return p }

func TestPlan(t *testing.T) {
	never, onFailure := corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	dead := box(ran("a", exited, 0))
	dead.sandboxes[0].State = cri.PodSandboxState_SANDBOX_NOTREADY
	for _, c := range []struct {
		name    string
		pod     *corev1.Pod
		view    *view
		probes  fakeProbes
		start   []string
		kill    []string
		replace bool
		finish  bool
	}{
		{name: "nothing there", pod: pod("p", "a", "b"), view: &view{}, start: []string{"a", "b"}, replace: true},
		{name: "init first", pod: withInit(pod("p", "a"), "i"), view: &view{}, start: []string{"i"}, replace: true},
		{name: "all run", pod: pod("p", "a"), view: box(ran("a", running, 0))},
		{name: "one missing", pod: pod("p", "a", "b"), view: box(ran("a", running, 0)), start: []string{"b"}},
		{name: "failed start", pod: pod("p", "a"), view: box(ran("a", created, 0)), start: []string{"a"}},
		{name: "ended, always", pod: pod("p", "a"), view: box(ran("a", exited, 0)), start: []string{"a"}},
		{name: "ended, on failure", pod: policy(pod("p", "a"), onFailure), view: box(ran("a", exited, 0)), finish: true},
		{name: "failed, on failure", pod: policy(pod("p", "a"), onFailure), view: box(ran("a", exited, 1)), start: []string{"a"}},
		{name: "failed, never", pod: policy(pod("p", "a"), never), view: box(ran("a", exited, 1)), finish: true},
		{name: "one of two ended, never", pod: policy(pod("p", "a", "b"), never), view: box(ran("a", exited, 1), ran("b", running, 0))},
		{name: "sandbox died, always", pod: pod("p", "a"), view: dead, start: []string{"a"}, replace: true},
		{name: "sandbox died, never", pod: policy(pod("p", "a"), never), view: dead, finish: true},
		{name: "sandbox died, all succeeded", pod: policy(pod("p", "a"), onFailure), view: dead, finish: true},
		{name: "not alive", pod: pod("p", "a"), view: box(ran("a", running, 0)), probes: fakeProbes{live: map[string]verdict{"id-a": failure}},
			kill: []string{"Container a failed liveness probe, will be restarted"}, start: []string{"a"}},
		{name: "not alive, never", pod: policy(pod("p", "a"), never), view: box(ran("a", running, 0)), probes: fakeProbes{live: map[string]verdict{"id-a": failure}},
			kill: []string{"Container a failed liveness probe"}},
		{name: "init runs", pod: withInit(pod("p", "a"), "i"), view: box(ran("i", running, 0))},
		{name: "init done", pod: withInit(pod("p", "a"), "i"), view: box(ran("i", exited, 0)), start: []string{"a"}},
		{name: "init failed", pod: withInit(pod("p", "a"), "i"), view: box(ran("i", exited, 1)), start: []string{"i"}},
		{name: "init failed, never", pod: policy(withInit(pod("p", "a"), "i"), never), view: box(ran("i", exited, 1)), finish: true},
		{name: "second init", pod: withInit(pod("p", "a"), "i", "j"), view: box(ran("i", exited, 0)), start: []string{"j"}},
		{name: "init forgotten", pod: withInit(pod("p", "a"), "i", "j"), view: box(ran("j", exited, 0)), start: []string{"a"}},
		{name: "sidecar starts", pod: withInit(pod("p", "a"), "s", "i"), view: box(), start: []string{"s"}},
		{name: "after the sidecar", pod: withInit(pod("p", "a"), "s", "i"), view: box(ran("s", running, 0)), start: []string{"i"}},
		{name: "sidecar ended", pod: withInit(pod("p", "a"), "s"), view: box(ran("s", exited, 0), ran("a", running, 0)), start: []string{"s"}},
		{name: "sidecar ended, main ended", pod: policy(withInit(pod("p", "a"), "s"), never), view: box(ran("s", exited, 0), ran("a", exited, 0)), finish: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := plan(c.pod, c.view, c.probes)
			var start, kill []string
			for _, s := range a.start {
				start = append(start, s.Name)
			}
			for _, k := range a.kill {
				kill = append(kill, k.message)
			}
			if a.finish != c.finish || a.replace != c.replace || !slices.Equal(kill, c.kill) || !c.finish && !slices.Equal(start, c.start) {
				t.Errorf("start %v kill %v replace %v finish %v", start, kill, a.replace, a.finish)
			}
		})
	}
}

func TestStartupProbeHoldsTheNext(t *testing.T) {
	p := withInit(pod("p", "a"), "s")
	p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
	v := box(ran("s", running, 0))
	if a := plan(p, v, fakeProbes{}); len(a.start) != 0 {
		t.Errorf("main started before its sidecar had: %v", a.start)
	}
	if a := plan(p, v, fakeProbes{start: map[string]verdict{"id-s": success}}); len(a.start) != 1 {
		t.Error("main does not start")
	}
}

func TestRestartRules(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	p := policy(pod("p", "a"), corev1.RestartPolicyNever)
	c := &p.Spec.Containers[0]
	c.RestartPolicy = &never
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
	if !restartsOn(p, c, 42) || restartsOn(p, c, 1) {
		t.Error("the rule does not decide")
	}
}

// The hash is the field's own, so that containers are adopted either way.
func TestContainerHash(t *testing.T) {
	if got := containerHash(&corev1.Container{Name: "test_container", Image: "foo/image:v1"}); got != "8e45cbd0" {
		t.Errorf("hash %s", got)
	}
	a, b := containerHash(&corev1.Container{Name: "c", Image: "x"}), containerHash(&corev1.Container{Name: "c", Image: "y"})
	if a == b {
		t.Error("another image, the same hash")
	}
}

// TestReplacing: from the kill of a container whose definition changed to the
// start of the next one, or to what keeps that from starting.
func TestReplacing(t *testing.T) {
	older, next := ran("a", running, 0), ran("a", running, 1)
	older.Id, next.Id = "1", "2"
	with := func(c *container, state cri.ContainerState) *container {
		status := proto.Clone(c.ContainerStatus).(*cri.ContainerStatus)
		status.State = state
		return &container{ContainerStatus: status}
	}
	for _, c := range []struct {
		name string
		view *view
		wait string
		want bool
	}{
		{"killed", box(older), "", true},
		{"gone out", box(with(older, cri.ContainerState_CONTAINER_EXITED)), "", true},
		{"made", box(with(next, cri.ContainerState_CONTAINER_CREATED), with(older, cri.ContainerState_CONTAINER_EXITED)), "", true},
		{"runs", box(next, with(older, cri.ContainerState_CONTAINER_EXITED)), "", false},
		{"ran", box(with(next, cri.ContainerState_CONTAINER_EXITED)), "", false},
		{"cannot be pulled", box(with(older, cri.ContainerState_CONTAINER_EXITED)), "ErrImagePull", false},
		{"no container", box(), "", false},
	} {
		w := &worker{replaced: map[string]string{"a": "1"}, view: c.view, waits: map[string]waitError{"a": {reason: c.wait}}}
		if got := w.replacing(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
