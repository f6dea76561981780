package cloudnodelifecycle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func node(status corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}}
	if status != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	}
	return n
}

func TestFirst(t *testing.T) {
	for _, c := range []struct {
		node *corev1.Node
		want action
	}{
		{node(corev1.ConditionTrue), nothing},
		{node(corev1.ConditionTrue, shutdownTaint), untaint},
		{node(corev1.ConditionTrue, corev1.Taint{Key: shutdownTaint.Key, Effect: corev1.TaintEffectNoExecute}), nothing}, // somebody else's
		{node(corev1.ConditionFalse), ask},
		{node(corev1.ConditionUnknown, shutdownTaint), ask},
		{node(""), ask},
	} {
		if got := first(c.node); got != c.want {
			t.Errorf("%+v: %s, want %s", c.node, got, c.want)
		}
	}
}

func TestPlan(t *testing.T) {
	const period = 5 * time.Second
	for name, c := range map[string]struct {
		node   *corev1.Node
		answer answer
		absent time.Duration
		want   action
	}{
		"there":                    {node(""), answer{exists: true}, 0, nothing},
		"off":                      {node(""), answer{true, true}, 0, taint},
		"off, and tainted":         {node("", shutdownTaint), answer{true, true}, 0, nothing},
		"on again, not ready yet":  {node("", shutdownTaint), answer{exists: true}, 0, nothing},
		"gone by the first answer": {node(""), answer{}, 0, confirm},
		"gone for a moment":        {node(""), answer{}, period - 1, confirm},
		"gone for a period":        {node(""), answer{}, period, remove},
		"gone and said to be off":  {node(""), answer{false, true}, period, remove},
	} {
		if got := plan(c.node, c.answer, c.absent, period); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestSameInstance(t *testing.T) {
	asked := node(corev1.ConditionFalse)
	asked.UID, asked.Spec.ProviderID = "1", "p://1"
	for name, change := range map[string]func(*corev1.Node){
		"another node":     func(n *corev1.Node) { n.UID = "2" },
		"another instance": func(n *corev1.Node) { n.Spec.ProviderID = "p://2" },
		"ready":            func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue },
	} {
		live := asked.DeepCopy()
		if !sameInstance(live, asked) {
			t.Fatal("it is not itself")
		}
		if change(live); sameInstance(live, asked) {
			t.Errorf("%s: the same", name)
		}
	}
}
