package plugins

import (
	corev1 "k8s.io/api/core/v1"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"knarr/controlplane/scheduler/framework"
)

// NodeUnschedulable keeps pods off cordoned nodes unless they tolerate it.
type NodeUnschedulable struct{}

var _ framework.Filter = NodeUnschedulable{}

var cordoned = framework.Refuse(framework.Unresolvable, "NodeUnschedulable", "node(s) were unschedulable")

// Name is the plugin's.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

// Local marks that only the pod and the node matter.
func (NodeUnschedulable) Local() {}

// Filter looks at spec.unschedulable.
func (NodeUnschedulable) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	if !n.Object.Spec.Unschedulable || toleratesCordon(p) {
		return nil
	}
	return cordoned
}

func toleratesCordon(p *framework.Pod) bool {
	return v1helper.TolerationsTolerateTaint(klog.Background(), p.Pod.Spec.Tolerations, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}, false)
}

// Hint is a node that is not cordoned, or a new toleration.
func (NodeUnschedulable) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.PodSelf != 0 {
		return toleratesCordon(p)
	}
	return e.Action&(framework.NodeAdded|framework.NodeTaints) != 0 && !e.Node.Spec.Unschedulable
}
