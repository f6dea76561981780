package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

// TestBeginAnew goes through what is seen while all containers of a pod that is not
// restarted otherwise are ended and removed: it has not failed at any time.
func TestBeginAnew(t *testing.T) {
	// The one that ends is a sidecar, which does not keep a pod alive.
	always := corev1.ContainerRestartPolicyAlways
	pod := podtest.WithRestartPolicy(podtest.WithInit(podtest.Pod("p", "b"), "a"), corev1.RestartPolicyNever)
	pod.Spec.InitContainers[0].RestartPolicy = &always
	pod.Spec.InitContainers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	a, b := podtest.Container("a", podtest.Running, 0), podtest.Container("b", podtest.Running, 0)
	ended, killed := podtest.Container("a", podtest.Exited, 42), podtest.Container("b", podtest.Exited, 137)
	old := corev1.PodStatus{}
	for _, c := range []struct {
		name      string
		view      *runtimestate.Pod
		condition corev1.ConditionStatus
		restarts  int32
	}{
		{"runs", podtest.Observed(a, b), corev1.ConditionFalse, 0},
		{"one has ended", podtest.Observed(ended, b), corev1.ConditionTrue, 0},
		{"the other is ended", podtest.Observed(ended, killed), corev1.ConditionTrue, 0},
		{"the other is removed", podtest.Observed(ended), corev1.ConditionTrue, 1},
		{"all are removed", podtest.Observed(), corev1.ConditionFalse, 1},
		{"and nothing new yet", podtest.Observed(), corev1.ConditionFalse, 1},
	} {
		s := statusOf(pod, c.view, func(in *Input) { in.Old = &old })
		other := FindContainer(s.ContainerStatuses, "b")
		if s.Phase != corev1.PodRunning || other.RestartCount != c.restarts || FindCondition(s.Conditions, corev1.AllContainersRestarting).Status != c.condition {
			t.Errorf("%s: phase %s, conditions %v, b %+v", c.name, s.Phase, s.Conditions, other)
		}
		if last := other.LastTerminationState.Terminated; c.restarts > 0 && (last == nil || last.Reason != podspec.ReasonRestartingAll) {
			t.Errorf("%s: b ended last as %v", c.name, last)
		}
		old = s
	}
}
