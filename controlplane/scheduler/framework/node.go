package framework

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
)

// A Node is one node and what runs on it. Object is nil when only pods tell of
// the node.
type Node struct {
	Slot        int
	Name        string
	Object      *corev1.Node
	Allocatable Resources
	Used        Resources
	// ScoreCPU and ScoreMemory are what scoring takes the pods to use.
	ScoreCPU, ScoreMemory int64
	Pods                  []*Pod
	// Nominated are waiting pods that made room for themselves here.
	Nominated []*Pod
	ports     map[Port]int
	disks     map[diskName]diskUses
	// Features are those that the node has declared.
	Features features.FeatureSet
	// Avoids counts taints that keep pods away only by preference.
	Avoids int
}

func (n *Node) place(p *Pod) {
	p.Node, p.at = n, len(n.Pods)
	n.Pods = append(n.Pods, p)
	n.count(p, 1)
}

func (n *Node) displace(p *Pod) {
	last := len(n.Pods) - 1
	n.Pods[p.at] = n.Pods[last]
	n.Pods[p.at].at = p.at
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	p.Node = nil
	n.count(p, -1)
}

func (n *Node) count(p *Pod, sign int64) {
	n.Used.add(p.Asks, sign)
	n.ScoreCPU += sign * p.ScoreCPU
	n.ScoreMemory += sign * p.ScoreMemory
	for _, port := range p.Ports {
		if n.ports == nil {
			n.ports = map[Port]int{}
		}
		if n.ports[port] += int(sign); n.ports[port] <= 0 {
			delete(n.ports, port)
		}
	}
	n.countDisks(p.Disks, int(sign))
}

// Copy is a node to try things on with With and Without; the real one and its
// pods stay as they are.
func (n *Node) Copy() *Node {
	c := *n
	c.Used = slices.Clone(n.Used)
	c.Pods = nil
	c.ports, c.disks = maps.Clone(n.ports), maps.Clone(n.disks)
	return &c
}

// With counts a pod on a copy, Without takes one off.
func (n *Node) With(p *Pod)    { n.count(p, 1) }
func (n *Node) Without(p *Pod) { n.count(p, -1) }

// Taken reports whether a port clashes with one in use.
func (n *Node) Taken(want Port) bool {
	if len(n.ports) == 0 {
		return false
	}
	const any = "0.0.0.0"
	if want.IP == any {
		for have := range n.ports {
			if have.Number == want.Number && have.Protocol == want.Protocol {
				return true
			}
		}
		return false
	}
	return n.ports[want] > 0 || n.ports[Port{any, want.Protocol, want.Number}] > 0
}
