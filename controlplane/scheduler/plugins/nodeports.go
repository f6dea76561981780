package plugins

import "knarr/controlplane/scheduler/framework"

// NodePorts keeps pods off nodes whose ports they want are taken.
type NodePorts struct{}

var _ framework.Filter = NodePorts{}

var portTaken = framework.Refuse(framework.Unschedulable, "NodePorts", "node(s) didn't have free ports for the requested pod ports")

// Room marks that pods going make a difference.
func (NodePorts) Room() {}

// Name is the plugin's.
func (NodePorts) Name() string { return "NodePorts" }

// Local marks that only the pod and the node matter.
func (NodePorts) Local() {}

// PreFilter skips pods that want none.
func (NodePorts) PreFilter(p *framework.Pod) (bool, *framework.Status) { return len(p.Ports) == 0, nil }

// Filter looks each port up.
func (NodePorts) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	for _, port := range p.Ports {
		if n.Taken(port) {
			return portTaken
		}
	}
	return nil
}

// Hint is a new node, or a pod gone that had one of the ports.
func (NodePorts) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.NodeAdded != 0 {
		return true
	}
	if e.Action&framework.PodGone == 0 || e.Pod == nil {
		return false
	}
	for _, want := range p.Ports {
		for _, had := range e.Pod.Ports {
			if want.Number == had.Number && want.Protocol == had.Protocol {
				return true
			}
		}
	}
	return false
}
