package kubelet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

type fakeProbes struct{ live, start map[string]verdict }

func (f fakeProbes) Liveness(id string) verdict { return f.live[id] }

func (f fakeProbes) Startup(id string) verdict { return f.start[id] }

func TestPlan(t *testing.T) {
	never, onFailure := corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	dead := podtest.Observed(podtest.Container("a", podtest.Exited, 0))
	dead.Sandboxes[0].State = cri.PodSandboxState_SANDBOX_NOTREADY
	replaced := podtest.Observed(podtest.Container("a", podtest.Exited, 0))
	replaced.Containers[0].Replaced = true
	oom := podtest.Observed(podtest.Container("i", podtest.Exited, 0))
	oom.Containers[0].Reason = "OOMKilled"
	oomed := podtest.Observed(podtest.Container("i", podtest.Exited, 0), podtest.Container("a", podtest.Running, 0))
	oomed.Containers[0].Reason = "OOMKilled"
	for _, c := range []struct {
		name    string
		pod     *corev1.Pod
		view    *runtimestate.Pod
		probes  fakeProbes
		start   []string
		kill    []string
		replace bool
		finish  bool
	}{
		{name: "nothing there", pod: podtest.Pod("p", "a", "b"), view: &runtimestate.Pod{}, start: []string{"a", "b"}, replace: true},
		{name: "init first", pod: podtest.WithInit(podtest.Pod("p", "a"), "i"), view: &runtimestate.Pod{}, start: []string{"i"}, replace: true},
		{name: "all run", pod: podtest.Pod("p", "a"), view: podtest.Observed(podtest.Container("a", podtest.Running, 0))},
		{name: "one missing", pod: podtest.Pod("p", "a", "b"), view: podtest.Observed(podtest.Container("a", podtest.Running, 0)), start: []string{"b"}},
		{name: "failed start", pod: podtest.Pod("p", "a"), view: podtest.Observed(podtest.Container("a", podtest.Created, 0)), start: []string{"a"}},
		{name: "ended, always", pod: podtest.Pod("p", "a"), view: podtest.Observed(podtest.Container("a", podtest.Exited, 0)), start: []string{"a"}},
		{name: "ended, on failure", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), onFailure), view: podtest.Observed(podtest.Container("a", podtest.Exited, 0)), finish: true},
		{name: "failed, on failure", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), onFailure), view: podtest.Observed(podtest.Container("a", podtest.Exited, 1)), start: []string{"a"}},
		{name: "failed, never", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), never), view: podtest.Observed(podtest.Container("a", podtest.Exited, 1)), finish: true},
		{name: "one of two ended, never", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a", "b"), never), view: podtest.Observed(podtest.Container("a", podtest.Exited, 1), podtest.Container("b", podtest.Running, 0))},
		{name: "sandbox died, always", pod: podtest.Pod("p", "a"), view: dead, start: []string{"a"}, replace: true},
		{name: "sandbox died, never", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), never), view: dead, finish: true},
		{name: "sandbox died, all succeeded", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), onFailure), view: dead, finish: true},
		{name: "not alive", pod: podtest.Pod("p", "a"), view: podtest.Observed(podtest.Container("a", podtest.Running, 0)), probes: fakeProbes{live: map[string]verdict{"id-a": failure}},
			kill: []string{"Container a failed liveness probe, will be restarted"}, start: []string{"a"}},
		{name: "not alive, never", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), never), view: podtest.Observed(podtest.Container("a", podtest.Running, 0)), probes: fakeProbes{live: map[string]verdict{"id-a": failure}},
			kill: []string{"Container a failed liveness probe"}},
		{name: "replaced, ended well", pod: podtest.WithRestartPolicy(podtest.Pod("p", "a"), never), view: replaced, start: []string{"a"}},
		{name: "init runs", pod: podtest.WithInit(podtest.Pod("p", "a"), "i"), view: podtest.Observed(podtest.Container("i", podtest.Running, 0))},
		{name: "init done", pod: podtest.WithInit(podtest.Pod("p", "a"), "i"), view: podtest.Observed(podtest.Container("i", podtest.Exited, 0)), start: []string{"a"}},
		{name: "init failed", pod: podtest.WithInit(podtest.Pod("p", "a"), "i"), view: podtest.Observed(podtest.Container("i", podtest.Exited, 1)), start: []string{"i"}},
		{name: "init failed, never", pod: podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "a"), "i"), never), view: podtest.Observed(podtest.Container("i", podtest.Exited, 1)), finish: true},
		{name: "init out of memory", pod: podtest.WithInit(podtest.Pod("p", "a"), "i"), view: oom, start: []string{"i"}},
		{name: "init out of memory, on failure", pod: podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "a"), "i"), onFailure), view: oom, start: []string{"i"}},
		{name: "init out of memory, never", pod: podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "a"), "i"), never), view: oom, finish: true},
		{name: "init out of memory, and passed", pod: podtest.WithInit(podtest.Pod("p", "a"), "i"), view: oomed},
		{name: "second init", pod: podtest.WithInit(podtest.Pod("p", "a"), "i", "j"), view: podtest.Observed(podtest.Container("i", podtest.Exited, 0)), start: []string{"j"}},
		{name: "init forgotten", pod: podtest.WithInit(podtest.Pod("p", "a"), "i", "j"), view: podtest.Observed(podtest.Container("j", podtest.Exited, 0)), start: []string{"a"}},
		{name: "sidecar starts", pod: podtest.WithInit(podtest.Pod("p", "a"), "s", "i"), view: podtest.Observed(), start: []string{"s"}},
		{name: "after the sidecar", pod: podtest.WithInit(podtest.Pod("p", "a"), "s", "i"), view: podtest.Observed(podtest.Container("s", podtest.Running, 0)), start: []string{"i"}},
		{name: "sidecar ended", pod: podtest.WithInit(podtest.Pod("p", "a"), "s"), view: podtest.Observed(podtest.Container("s", podtest.Exited, 0), podtest.Container("a", podtest.Running, 0)), start: []string{"s"}},
		{name: "sidecar ended, main ended", pod: podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "a"), "s"), never), view: podtest.Observed(podtest.Container("s", podtest.Exited, 0), podtest.Container("a", podtest.Exited, 0)), finish: true},
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
	p := podtest.WithInit(podtest.Pod("p", "a"), "s")
	p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
	v := podtest.Observed(podtest.Container("s", podtest.Running, 0))
	if a := plan(p, v, fakeProbes{}); len(a.start) != 0 {
		t.Errorf("main started before its sidecar had: %v", a.start)
	}
	if a := plan(p, v, fakeProbes{start: map[string]verdict{"id-s": success}}); len(a.start) != 1 {
		t.Error("main does not start")
	}
}
