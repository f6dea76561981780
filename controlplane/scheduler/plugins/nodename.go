package plugins

import "knarr/controlplane/scheduler/framework"

// NodeName keeps a pod that names its node to that node.
type NodeName struct{}

var _ framework.Filter = NodeName{}

var wrongNode = framework.Refuse(framework.Unresolvable, "NodeName", "node(s) didn't match the requested node name")

// Name is the plugin's.
func (NodeName) Name() string { return "NodeName" }

// Local marks that only the pod and the node matter.
func (NodeName) Local() {}

// Filter compares the names.
func (NodeName) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	if want := p.Pod.Spec.NodeName; want != "" && want != n.Name {
		return wrongNode
	}
	return nil
}

// Hint is a new node.
func (NodeName) Hint(e *framework.Event, p *framework.Pod) bool {
	return e.Action&framework.NodeAdded != 0
}
