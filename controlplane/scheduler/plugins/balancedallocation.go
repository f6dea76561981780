package plugins

import (
	"math"

	"knarr/controlplane/scheduler/framework"
)

// NodeResourcesBalancedAllocation prefers nodes whose CPU and memory the pod
// brings into balance.
type NodeResourcesBalancedAllocation struct{}

var _ framework.Score = NodeResourcesBalancedAllocation{}

// Name is the plugin's.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// Local marks that only the pod and the node matter.
func (NodeResourcesBalancedAllocation) Local() {}

// PreScore skips pods that request neither.
func (NodeResourcesBalancedAllocation) PreScore(p *framework.Pod, _ []*framework.Node) bool {
	return p.Asks[framework.CPU] == 0 && p.Asks[framework.Memory] == 0
}

// Score compares the balance with the pod to that without.
func (NodeResourcesBalancedAllocation) Score(p *framework.Pod, n *framework.Node) int64 {
	with := balance(n, p.Asks[framework.CPU], p.Asks[framework.Memory])
	without := balance(n, 0, 0)
	return framework.MaxScore/2 + (framework.MaxScore/2+with-without)/2
}

// balance is 100 when equal shares of CPU and memory are used.
func balance(n *framework.Node, cpu, memory int64) int64 {
	allCPU, allMemory := n.Allocatable.At(framework.CPU), n.Allocatable.At(framework.Memory)
	if allCPU == 0 || allMemory == 0 {
		return framework.MaxScore
	}
	c := min(float64(n.Used.At(framework.CPU)+cpu)/float64(allCPU), 1)
	m := min(float64(n.Used.At(framework.Memory)+memory)/float64(allMemory), 1)
	return int64((1 - math.Abs((c-m)/2)) * framework.MaxScore)
}
