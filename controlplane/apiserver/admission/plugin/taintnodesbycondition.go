package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/admission"
)

// taintNodesByCondition keeps pods off a new node until it says that it is
// ready.
type taintNodesByCondition struct{}

func (taintNodesByCondition) Name() string { return "TaintNodesByCondition" }

func (taintNodesByCondition) Admit(_ context.Context, a *admission.Attributes) error {
	node, ok := a.Object.(*corev1.Node)
	if !ok || a.Operation != admission.Create || !is(a, "nodes", "") {
		return nil
	}
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady && t.Effect == corev1.TaintEffectNoSchedule {
			return nil
		}
	}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	return nil
}
