package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// readiness is Unknown also where no status was ever reported.
func readiness(node *corev1.Node) corev1.ConditionStatus {
	if c := condition(node, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// markUnknown makes the node's conditions unknown; it reports whether one changed.
func markUnknown(node *corev1.Node, now time.Time) (changed bool) {
	at := metav1.NewTime(now)
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		c := condition(node, kind)
		switch {
		case c == nil:
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown,
				Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: at,
			})
			changed = true
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = at
			changed = true
		}
	}
	return changed
}

// follow are the taints that follow a condition's status.
var follow = []struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	taint     string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
}

// plan is the list of taints the node should have: those of others as they
// are, then those that its state asks for. With evict, pods that do not
// tolerate its state are to leave.
func plan(node *corev1.Node, ready corev1.ConditionStatus, evict bool, now time.Time) []corev1.Taint {
	type id struct {
		key    string
		effect corev1.TaintEffect
	}
	ours, want := map[id]bool{}, map[id]bool{}
	order := []id{}
	mark := func(key string, effect corev1.TaintEffect, on bool) {
		k := id{key, effect}
		if !ours[k] {
			order = append(order, k)
		}
		ours[k] = true
		want[k] = want[k] || on
	}
	for _, f := range follow {
		c := condition(node, f.condition)
		mark(f.taint, corev1.TaintEffectNoSchedule, c != nil && c.Status == f.status)
	}
	mark(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule, node.Spec.Unschedulable)
	mark(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute, evict && ready == corev1.ConditionFalse)
	mark(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, evict && ready == corev1.ConditionUnknown)

	var out []corev1.Taint
	have := map[id]bool{}
	for _, t := range node.Spec.Taints {
		k := id{t.Key, t.Effect}
		if ours[k] && !want[k] {
			continue
		}
		have[k] = true
		out = append(out, t)
	}
	for _, k := range order {
		if want[k] && !have[k] {
			out = append(out, corev1.Taint{Key: k.key, Effect: k.effect, TimeAdded: new(metav1.NewTime(now))})
		}
	}
	return out
}
