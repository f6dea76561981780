package plugins

import (
	corev1 "k8s.io/api/core/v1"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"knarr/controlplane/scheduler/framework"
)

// TaintToleration keeps pods off nodes with taints they do not tolerate, and
// prefers nodes with fewer soft ones.
type TaintToleration struct{ cluster *framework.Cluster }

var (
	_ framework.Filter     = (*TaintToleration)(nil)
	_ framework.Normalizer = (*TaintToleration)(nil)
)

var tainted = framework.Refuse(framework.Unresolvable, "TaintToleration", "node(s) had untolerated taint(s)")

// Name is the plugin's.
func (*TaintToleration) Name() string { return "TaintToleration" }

// Local marks that only the pod and the node matter.
func (*TaintToleration) Local() {}

// Filter looks for a taint that keeps the pod away.
func (*TaintToleration) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	if len(n.Object.Spec.Taints) > 0 && !toleratesAll(p, n.Object) {
		return tainted
	}
	return nil
}

func hard(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

func toleratesAll(p *framework.Pod, n *corev1.Node) bool {
	_, untolerated := v1helper.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Pod.Spec.Tolerations, hard, false)
	return !untolerated
}

// PreScore skips clusters without soft taints.
func (t *TaintToleration) PreScore(*framework.Pod, []*framework.Node) bool {
	return t.cluster.Avoided == 0
}

// Score counts soft taints that the pod does not tolerate.
func (*TaintToleration) Score(p *framework.Pod, n *framework.Node) (count int64) {
	if n.Avoids == 0 {
		return 0
	}
	var soft []corev1.Toleration
	for _, t := range p.Pod.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			soft = append(soft, t)
		}
	}
	for i := range n.Object.Spec.Taints {
		t := &n.Object.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule && !v1helper.TolerationsTolerateTaint(klog.Background(), soft, t, false) {
			count++
		}
	}
	return count
}

// Normalize makes the fewest taints the best.
func (*TaintToleration) Normalize(_ *framework.Pod, _ []*framework.Node, scores []int64) {
	framework.NormalizeTo100(scores, true)
}

// Hint is a node that has become tolerable, or a new toleration.
func (*TaintToleration) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.PodSelf != 0 {
		return true
	}
	if e.Action&(framework.NodeAdded|framework.NodeTaints) == 0 {
		return false
	}
	was := e.OldNode != nil && toleratesAll(p, e.OldNode)
	return !was && toleratesAll(p, e.Node)
}
