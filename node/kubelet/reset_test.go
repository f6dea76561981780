package kubelet

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
)

// restartsAll gives a container of a pod a rule by which all begin anew after that code.
func restartsAll(c *corev1.Container, code int32) {
	never := corev1.ContainerRestartPolicyNever
	if c.RestartPolicy == nil {
		c.RestartPolicy = &never
	}
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code}},
	}}
}

func TestPlanReset(t *testing.T) {
	pod := podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "a", "b"), "i"), corev1.RestartPolicyNever)
	restartsAll(&pod.Spec.Containers[0], 42)
	for _, c := range []struct {
		name string
		code int32
		want []string
	}{
		{"another code", 41, nil},
		{"the one that ended is last", 42, []string{"b", "i", "a"}},
	} {
		v := podtest.Observed(podtest.Container("i", podtest.Exited, 0), podtest.Container("a", podtest.Exited, c.code), podtest.Container("b", podtest.Running, 0))
		var got []string
		for _, r := range plan(pod, v, fakeProbes{}).reset {
			got = append(got, r.Name())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: removed %v, want %v", c.name, got, c.want)
		}
	}
	running := podtest.Observed(podtest.Container("a", podtest.Running, 0), podtest.Container("a", podtest.Exited, 42))
	if a := plan(pod, running, fakeProbes{}); len(a.reset) > 0 {
		t.Error("an end before the last start counts")
	}
}

func TestAllContainersBeginAnew(t *testing.T) {
	n := newNode(t)
	n.rt.Started = func(name, _ string) {
		if name == "init" {
			n.rt.Exit(name, 0)
		}
	}
	defer n.start()()
	p := podtest.WithRestartPolicy(podtest.Pod("job", "main", "other"), corev1.RestartPolicyNever)
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{
		{Name: "init", Image: podtest.Image, ImagePullPolicy: corev1.PullIfNotPresent},
		{Name: "side", Image: podtest.Image, ImagePullPolicy: corev1.PullIfNotPresent, RestartPolicy: &always},
	}
	restartsAll(&p.Spec.Containers[0], 42)
	n.api.addPod(p)
	n.until("ready", n.ready("job"))
	if c := podstatus.FindCondition(n.api.pod("job").Status.Conditions, corev1.AllContainersRestarting); c == nil || c.Status != corev1.ConditionFalse {
		t.Errorf("condition before: %v", c)
	}
	before := len(n.rt.Calls())
	n.rt.Exit("main", 42)
	n.until("all began anew", func() bool {
		s := n.api.pod("job").Status
		all := append(slices.Clone(s.InitContainerStatuses), s.ContainerStatuses...)
		return len(all) == 4 && !slices.ContainsFunc(all, func(c corev1.ContainerStatus) bool {
			return c.RestartCount != 1 || c.Name != "init" && c.State.Running == nil
		})
	})
	n.until("ready again", n.ready("job"))
	var order []string
	for _, c := range n.rt.Calls()[before:] {
		if name, ok := strings.CutPrefix(c, "StartContainer "); ok {
			order = append(order, name)
		}
		if strings.HasPrefix(c, "RunPodSandbox") || strings.HasPrefix(c, "StopPodSandbox") {
			t.Errorf("the sandbox did not stay: %s", c)
		}
	}
	if want := []string{"init", "side", "main", "other"}; !slices.Equal(order, want) {
		t.Errorf("started %v, want %v", order, want)
	}
	s := n.api.pod("job").Status
	for _, c := range s.ContainerStatuses {
		if last := c.LastTerminationState.Terminated; last == nil || last.Reason != podspec.ReasonRestartingAll || last.ExitCode != 137 {
			t.Errorf("%s ended last as %+v", c.Name, last)
		}
	}
	if c := podstatus.FindCondition(s.Conditions, corev1.AllContainersRestarting); c.Status != corev1.ConditionFalse {
		t.Errorf("condition after: %v", c)
	}
	n.rt.Exit("main", 42)
	n.until("the second time waits as a restart of its own would", func() bool {
		s := podstatus.FindContainer(n.api.pod("job").Status.ContainerStatuses, "main")
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
	if got := n.rt.Running(); !slices.Contains(got, "other") {
		t.Errorf("meanwhile the others run: %v", got)
	}
}
