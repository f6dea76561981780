package nodelifecycle

import (
	"slices"
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

// How fast pods are made to leave the nodes of a zone.
const (
	largeZone     = 50
	unhealthyZone = 0.55
	usual         = 10 * time.Second  // one node every
	slow          = 100 * time.Second // in a large zone that is mostly down
)

// mayEvict reports whether the pods of a node that is not ready are to leave now.
// They stay when no node is ready, as then the fault is likely elsewhere.
func (r *reconciler) mayEvict(node *corev1.Node, ready corev1.ConditionStatus, now time.Time) bool {
	if ready == corev1.ConditionTrue {
		return false
	}
	zone := zoneOf(node)
	all, down, others := 0, 0, false
	for _, o := range r.nodes.List() {
		n := o.(*corev1.Node)
		up := readiness(n) == corev1.ConditionTrue && n.Name != node.Name
		others = others || up
		if zoneOf(n) == zone {
			all++
			if !up {
				down++
			}
		}
	}
	if !others {
		return false
	}
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	}) {
		return true // let go before
	}
	every := usual
	if partial := down > 2 && down < all && float64(down)/float64(all) >= unhealthyZone; partial {
		if all <= largeZone {
			return false
		}
		every = slow
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.zones[zone]; ok && now.Sub(last) < every {
		return false
	}
	r.zones[zone] = now
	return true
}

func zoneOf(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}
