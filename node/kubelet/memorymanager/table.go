package memorymanager

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/memorymanager/state"
)

// untouched is what the NUMA nodes have before anything is given away.
func (c Config) untouched() (state.NUMANodeMap, error) {
	out := state.NUMANodeMap{}
	for _, n := range c.Nodes {
		if n.ID < 0 || n.ID > 63 {
			return nil, fmt.Errorf("NUMA node %d is not supported", n.ID)
		}
		tables, kept := map[corev1.ResourceName]*state.MemoryTable{}, c.Reserved[n.ID]
		memory := n.Memory
		for name, total := range n.HugePages {
			tables[name] = table(total, kept[name], total)
			memory -= min(memory, total)
		}
		tables[corev1.ResourceMemory] = table(n.Memory, kept[corev1.ResourceMemory], memory)
		out[n.ID] = &state.NUMANodeState{MemoryMap: tables, Cells: []int{n.ID}}
	}
	return out, nil
}

// table is what a node has of one resource, of which some is kept; usable is what is not
// used for other things.
func table(total, kept, usable uint64) *state.MemoryTable {
	left := usable - min(usable, kept)
	return &state.MemoryTable{TotalMemSize: total, SystemReserved: kept, Allocatable: left, Free: left}
}

// allocatable is what containers can have of each node.
func allocatable(nodes state.NUMANodeMap) (out []state.Block) {
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		tables := nodes[id].MemoryMap
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			if n := tables[name].Allocatable; n > 0 {
				out = append(out, state.Block{NUMAAffinity: []int{id}, Type: name, Size: n})
			}
		}
	}
	return out
}

// take takes some of a resource from nodes, from the first ones first.
func take(nodes state.NUMANodeMap, on []int, name corev1.ResourceName, size uint64) {
	for _, id := range on {
		n := nodes[id]
		n.NumberOfAssignments++
		n.Cells = on
		if t := n.MemoryMap[name]; t != nil {
			part := min(size, t.Free)
			t.Free, t.Reserved = t.Free-part, t.Reserved+part
			size -= part
		}
	}
}

// release gives blocks back to the nodes they are of.
func release(nodes state.NUMANodeMap, blocks []state.Block) {
	for _, b := range blocks {
		size := b.Size
		for _, id := range b.NUMAAffinity {
			n := nodes[id]
			if n == nil {
				continue
			}
			if n.NumberOfAssignments--; n.NumberOfAssignments == 0 {
				n.Cells = []int{id}
			}
			if t := n.MemoryMap[b.Type]; t != nil {
				part := min(size, t.Reserved)
				t.Free, t.Reserved = t.Free+part, t.Reserved-part
				size -= part
			}
		}
	}
}

// expect says whether what a checkpoint says the nodes have is what they have, but for
// what it gave to containers; the nodes are untouched before.
func expect(untouched state.NUMANodeMap, have state.MemoryManagerCheckpoint) error {
	nodes := untouched.Clone()
	for uid, containers := range have.Entries {
		for name, blocks := range containers {
			for _, b := range blocks {
				for _, id := range b.NUMAAffinity {
					if nodes[id] == nil {
						return fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses the NUMA that does not exist", uid, name)
					}
					if nodes[id].MemoryMap[b.Type] == nil {
						return fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses memory resource that does not exist", uid, name)
					}
				}
				take(nodes, slices.Clone(b.NUMAAffinity), b.Type, b.Size)
			}
		}
	}
	if !alike(have.MachineState, nodes) {
		return fmt.Errorf("[memorymanager] the expected machine state is different from the real one")
	}
	return nil
}

// alike compares nodes. What nodes that are used together gave away counts in sum only: it
// depends on who came first.
func alike(a, b state.NUMANodeMap) bool {
	return maps.EqualFunc(a, b, func(x, y *state.NUMANodeState) bool {
		if x.NumberOfAssignments != y.NumberOfAssignments || !sameNodes(x.Cells, y.Cells) {
			return false
		}
		for _, id := range x.Cells {
			if a[id] == nil || b[id] == nil {
				return false
			}
		}
		return maps.EqualFunc(x.MemoryMap, y.MemoryMap, func(t, u *state.MemoryTable) bool {
			return t.TotalMemSize == u.TotalMemSize && t.SystemReserved == u.SystemReserved && t.Allocatable == u.Allocatable
		}) && maps.EqualFunc(sums(a, x), sums(b, y), func(t, u state.MemoryTable) bool { return t == u })
	})
}

// sums are what the nodes that are used together with one have free and gave away.
func sums(nodes state.NUMANodeMap, of *state.NUMANodeState) map[corev1.ResourceName]state.MemoryTable {
	out := map[corev1.ResourceName]state.MemoryTable{}
	for name := range of.MemoryMap {
		var sum state.MemoryTable
		for _, id := range of.Cells {
			if t := nodes[id].MemoryMap[name]; t != nil {
				sum.Free += t.Free
				sum.Reserved += t.Reserved
			}
		}
		out[name] = sum
	}
	return out
}

func sameNodes(a, b []int) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
