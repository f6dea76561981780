package plugins

import (
	"knarr/controlplane/scheduler/framework"
)

// NodeAffinity keeps pods to the nodes they select, and prefers those they
// prefer.
type NodeAffinity struct{}

var (
	_ framework.Filter     = (*NodeAffinity)(nil)
	_ framework.Normalizer = (*NodeAffinity)(nil)
)

var unselected = framework.Refuse(framework.Unresolvable, "NodeAffinity", "node(s) didn't match Pod's node affinity/selector")

// Name is the plugin's.
func (*NodeAffinity) Name() string { return "NodeAffinity" }

// Local marks that only the pod and the node matter.
func (*NodeAffinity) Local() {}

var contradictory = framework.Refuse(framework.Unresolvable, "NodeAffinity", "pod affinity terms conflict")

// PreFilter skips pods that select no node.
func (*NodeAffinity) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	if p.Only != nil && len(p.Only) == 0 {
		return false, contradictory
	}
	return !selectsNodes(p), nil
}

func selectsNodes(p *framework.Pod) bool {
	s := p.Shape.Spec
	return len(s.NodeSelector) > 0 || s.Affinity != nil && s.Affinity.NodeAffinity != nil &&
		s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}

// Filter matches the node.
func (*NodeAffinity) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	if ok, _ := p.NodeAffinity.Match(n.Object); !ok {
		return unselected
	}
	return nil
}

// PreScore skips pods without preference.
func (*NodeAffinity) PreScore(p *framework.Pod, _ []*framework.Node) bool {
	return p.NodePreferred == nil
}

// Score adds the weights of the preferences the node meets.
func (*NodeAffinity) Score(p *framework.Pod, n *framework.Node) int64 {
	if p.NodePreferred == nil {
		return 0
	}
	return p.NodePreferred.Score(n.Object)
}

// Normalize makes the greatest sum the best.
func (*NodeAffinity) Normalize(_ *framework.Pod, _ []*framework.Node, scores []int64) {
	framework.NormalizeTo100(scores, false)
}

// Hint is a node that the pod has come to select.
func (*NodeAffinity) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.PodSelf != 0 {
		return true
	}
	if e.Action&(framework.NodeAdded|framework.NodeLabels) == 0 {
		return false
	}
	if e.OldNode != nil {
		if was, _ := p.NodeAffinity.Match(e.OldNode); was {
			return false
		}
	}
	ok, _ := p.NodeAffinity.Match(e.Node)
	return ok
}
