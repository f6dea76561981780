package memorymanager

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/memorymanager/state"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/topologymanager"
)

// Hints are the NUMA nodes that a container's memory could be of, for each of its kinds.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container) []topologymanager.Hints {
	if !m.Wants(pod) {
		return nil
	}
	want, err := requested(c)
	if err != nil {
		return nil // the container will not be given any
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if has := m.all[string(pod.UID)][c.Name]; has != nil {
		return again(has, want)
	}
	if m.ended(pod, c) {
		return nil
	}
	return each(want, m.hints(pod.UID, want))
}

// PodHints are those of all containers of a pod together.
func (m *Manager) PodHints(pod *corev1.Pod) []topologymanager.Hints {
	if !m.Wants(pod) {
		return nil
	}
	want, err := together(pod)
	if err != nil || len(want) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var has []state.Block
	podspec.EachContainer(pod, func(c *corev1.Container, _ podspec.ContainerKind) {
		if has == nil {
			has = m.all[string(pod.UID)][c.Name]
		}
	})
	if has != nil {
		return again(has, want)
	}
	return each(want, m.hints(pod.UID, want))
}

// together is what a pod's containers need at one time.
func together(pod *corev1.Pod) (requests, error) {
	init, sidecars, total := requests{}, requests{}, requests{}
	var failed error
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		want, err := requested(c)
		if err != nil {
			failed = err
		}
		for name, n := range want {
			switch {
			case kind == podspec.InitContainer && podspec.IsSidecar(c):
				sidecars[name] += n
			case kind == podspec.InitContainer:
				init[name] = max(init[name], sidecars[name]+n)
			case kind == podspec.MainContainer:
				total[name] += n
			}
		}
	})
	for name := range total {
		total[name] = max(total[name]+sidecars[name], init[name])
	}
	return total, failed
}

// again are the hints for what is given away already; none if that is not what is wanted.
func again(has []state.Block, want requests) (out []topologymanager.Hints) {
	if len(has) != len(want) {
		return nil
	}
	for _, b := range has {
		if size, ok := want[b.Type]; !ok || size != b.Size {
			return nil
		}
		out = append(out, topologymanager.Hints{{Nodes: topologymanager.NodesOf(b.NUMAAffinity...), Preferred: true}})
	}
	return out
}

// each are the same hints for each kind of memory. If there are none, nothing is said, as
// upstream does: the policies that align take the pod, and Allocate says why it cannot be.
func each(want requests, hints topologymanager.Hints) (out []topologymanager.Hints) {
	if len(hints) == 0 {
		return nil
	}
	for range want {
		out = append(out, hints)
	}
	return out
}

// hints are the sets of nodes that have enough of everything; the lock is held. A node
// that gave memory alone does not give any together with others, and nodes that gave some
// together do so only together.
func (m *Manager) hints(uid types.UID, want requests) (out topologymanager.Hints) {
	ids := slices.Sorted(maps.Keys(m.nodes))
	least := len(ids)
	for _, set := range topologymanager.Sets(topologymanager.NodesOf(ids...)) {
		could, can := true, true
		for name, size := range want {
			all, free := m.sum(set, name)
			could = could && all >= size
			can = can && free+m.reusableOf(uid, set, name) >= size
		}
		if !could {
			continue
		}
		least = min(least, set.Count())
		if can && m.groups(set) {
			out = append(out, topologymanager.Hint{Nodes: set})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
	}
	return out
}

// sum is what nodes have of a resource for containers, and what of it is free.
func (m *Manager) sum(set topologymanager.Nodes, name corev1.ResourceName) (all, free uint64) {
	for _, id := range set.IDs() {
		if t := m.nodes[id].MemoryMap[name]; t != nil {
			all, free = all+t.Allocatable, free+t.Free
		}
	}
	return all, free
}

// groups says whether memory of nodes together does not go against what they gave before.
func (m *Manager) groups(set topologymanager.Nodes) bool {
	ids := set.IDs()
	if len(ids) == 1 {
		return len(m.nodes[ids[0]].Cells) == 1
	}
	return m.unmixed(set)
}

func (m *Manager) unmixed(set topologymanager.Nodes) bool {
	ids := set.IDs()
	for _, id := range ids {
		n := m.nodes[id]
		if len(ids) > 1 && n.NumberOfAssignments > 0 && (len(n.Cells) == 1 || !sameNodes(n.Cells, ids)) {
			return false
		}
	}
	return true
}

// best is the hint with the fewest nodes, of those that are preferred if there are any.
func best(hints topologymanager.Hints) (b topologymanager.Hint) {
	for _, h := range hints {
		more := h.Nodes.Count() < b.Nodes.Count() || h.Nodes.Count() == b.Nodes.Count() && h.Nodes < b.Nodes
		if b.Nodes == 0 || h.Preferred && !b.Preferred || h.Preferred == b.Preferred && more {
			b = h
		}
	}
	return b
}

// choose finds the nodes for what a container wants, given those that would suit its CPUs
// and devices too; the lock is held.
func (m *Manager) choose(uid types.UID, want requests, near topologymanager.Hint) (topologymanager.Nodes, error) {
	chosen := near
	if near.Nodes == 0 {
		all := m.hints(uid, want)
		if len(all) == 0 {
			return 0, fmt.Errorf("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
		chosen = best(all)
		if !chosen.Preferred && near.Preferred {
			return 0, fmt.Errorf("[memorymanager] failed to find the default preferred hint")
		}
	}
	if !m.enough(chosen.Nodes, want) {
		// Nodes that suit everything can be fewer than the memory needs.
		wider := slices.DeleteFunc(m.hints(uid, want), func(h topologymanager.Hint) bool { return h.Nodes&chosen.Nodes != chosen.Nodes })
		if len(wider) == 0 {
			return 0, fmt.Errorf("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		}
		extended := best(wider)
		if !extended.Preferred && chosen.Preferred {
			return 0, fmt.Errorf("[memorymanager] failed to find the extended preferred hint")
		}
		chosen = extended
	}
	if !m.unmixed(chosen.Nodes) {
		return 0, fmt.Errorf("[memorymanager] preferred hint violates NUMA node allocation")
	}
	return chosen.Nodes, nil
}

func (m *Manager) enough(set topologymanager.Nodes, want requests) bool {
	for _, id := range set.IDs() {
		if m.nodes[id] == nil {
			return false // a node with CPUs and no memory
		}
	}
	for name, size := range want {
		if _, free := m.sum(set, name); free < size {
			return false
		}
	}
	return true
}
