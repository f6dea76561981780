package plugins

import (
	"slices"

	"knarr/controlplane/scheduler/framework"
)

// NodeResourcesFit keeps pods to nodes that have what they request, and
// prefers those with the most left.
type NodeResourcesFit struct {
	cluster *framework.Cluster
	// last is the last refusal: nodes in a row often get the same.
	last    *framework.Status
	reasons []string
}

// maxReasons bounds how many of the resources that a node lacks are named. A pod may
// ask for tens of thousands.
const maxReasons = 10

var (
	_ framework.Filter = (*NodeResourcesFit)(nil)
	_ framework.Score  = (*NodeResourcesFit)(nil)
)

// Room marks that pods going make a difference.
func (*NodeResourcesFit) Room() {}

// Name is the plugin's.
func (*NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Local marks that only the pod and the node matter.
func (*NodeResourcesFit) Local() {}

// Filter compares each request to what is free.
func (f *NodeResourcesFit) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	fits := len(p.Nowhere) == 0 && n.Used.At(framework.Pods)+1 <= n.Allocatable.At(framework.Pods)
	for i, want := range p.Asks {
		if !fits {
			break
		}
		if i != framework.Pods && want > 0 && want > n.Allocatable.At(i)-n.Used.At(i) {
			fits = false
		}
	}
	if fits {
		return nil
	}
	return f.refusal(p, n)
}

// refusal names the first of what the node lacks.
func (f *NodeResourcesFit) refusal(p *framework.Pod, n *framework.Node) *framework.Status {
	code := framework.Unschedulable
	f.reasons = f.reasons[:0]
	if n.Used.At(framework.Pods)+1 > n.Allocatable.At(framework.Pods) {
		f.reasons = append(f.reasons, "Too many pods")
	}
	for i, want := range p.Asks {
		if i == framework.Pods || want <= 0 || want <= n.Allocatable.At(i)-n.Used.At(i) {
			continue
		}
		if len(f.reasons) < maxReasons {
			f.reasons = append(f.reasons, f.cluster.Insufficient(i))
		}
		if want > n.Allocatable.At(i) {
			code = framework.Unresolvable
		}
	}
	if len(p.Nowhere) > 0 {
		code = framework.Unresolvable
	}
	for i := range p.Nowhere[:min(len(p.Nowhere), maxReasons-len(f.reasons))] {
		f.reasons = append(f.reasons, "Insufficient "+string(p.Nowhere[i].Name))
	}
	if f.last == nil || f.last.Code != code || !slices.Equal(f.last.Reasons, f.reasons) {
		f.last = framework.Refuse(code, f.Name(), slices.Clone(f.reasons)...)
	}
	return f.last
}

// Score is the mean share of CPU and memory left, each of a hundred.
func (*NodeResourcesFit) Score(p *framework.Pod, n *framework.Node) int64 {
	var sum, kinds int64
	left := func(all, used int64) {
		if all == 0 {
			return
		}
		kinds++
		if used <= all {
			sum += (all - used) * framework.MaxScore / all
		}
	}
	left(n.Allocatable.At(framework.CPU), n.ScoreCPU+p.ScoreCPU)
	left(n.Allocatable.At(framework.Memory), n.ScoreMemory+p.ScoreMemory)
	if kinds == 0 {
		return 0
	}
	return sum / kinds
}

// Hint is a node that would hold the pod if empty, or a pod that freed some of
// what the pod wants.
func (f *NodeResourcesFit) Hint(e *framework.Event, p *framework.Pod) bool {
	switch {
	case e.Action&framework.PodSelf != 0:
		return true
	case e.Action&(framework.PodGone|framework.PodScaledDown) != 0:
		return true // any pod gone makes room for one more
	case e.Action&(framework.NodeAdded|framework.NodeAllocatable) != 0:
		if len(p.Nowhere) > 0 {
			return false
		}
		for i, want := range p.Asks {
			if want > 0 && want > f.cluster.Amount(e.Node.Status.Allocatable, i) {
				return false
			}
		}
		return true
	}
	return false
}
