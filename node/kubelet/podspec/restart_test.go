package podspec_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
)

func TestRestartRules(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	p := podtest.WithRestartPolicy(podtest.Pod("p", "a"), corev1.RestartPolicyNever)
	c := &p.Spec.Containers[0]
	c.RestartPolicy = &never
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
	if !podspec.RestartsOn(p, c, 42) || podspec.RestartsOn(p, c, 1) {
		t.Error("the rule does not decide")
	}
}
