package plugins

import "knarr/controlplane/scheduler/framework"

// NodeDeclaredFeatures keeps pods off nodes that have not declared the features these
// make use of.
type NodeDeclaredFeatures struct{}

var _ framework.Filter = NodeDeclaredFeatures{}

var lacksFeatures = framework.Refuse(framework.Unresolvable, "NodeDeclaredFeatures", "node(s) didn't match Pod's required features")

// Name is the plugin's.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

// Local marks that only the pod and the node matter.
func (NodeDeclaredFeatures) Local() {}

// PreFilter skips pods that need none, which are nearly all.
func (NodeDeclaredFeatures) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	return p.Needs.IsEmpty(), nil
}

// Filter compares what is needed with what is declared.
func (NodeDeclaredFeatures) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	if n.Lacks(p) {
		return lacksFeatures
	}
	return nil
}

// Hint is a node that declares them now. Nothing of a pod that may change decides what
// it needs.
func (NodeDeclaredFeatures) Hint(e *framework.Event, p *framework.Pod) bool {
	return e.Action&(framework.NodeAdded|framework.NodeUpdated) != 0 && p.HasDeclared(e.Node)
}
