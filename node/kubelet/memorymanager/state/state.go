// Package state is the form in which upstream's kubelet keeps which container has memory
// of which NUMA nodes, so that a node may change from one to the other. It reads and
// writes one file.
package state

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"

	"knarr/node/kubelet/statefile"
)

// Name is the file's in the kubelet's root directory.
const Name = "memory_manager_state"

// The types have upstream's names, because the checksum is of a text with them.
type (
	// MemoryManagerCheckpoint is the file.
	MemoryManagerCheckpoint struct {
		PolicyName   string                     `json:"policyName"`
		MachineState NUMANodeMap                `json:"machineState"`
		Entries      ContainerMemoryAssignments `json:"entries,omitempty"`
		Checksum     Checksum                   `json:"checksum"`
	}

	// NUMANodeMap is what each NUMA node has and gave away.
	NUMANodeMap map[int]*NUMANodeState

	// NUMANodeState is that of one of them.
	NUMANodeState struct {
		// NumberOfAssignments counts the blocks that are of this node.
		NumberOfAssignments int                                  `json:"numberOfAssignments"`
		MemoryMap           map[corev1.ResourceName]*MemoryTable `json:"memoryMap"`
		// Cells are the nodes that blocks are of together with this one.
		Cells []int `json:"cells"`
	}

	// MemoryTable is what a node has of memory, or of huge pages of one size, in bytes.
	MemoryTable struct {
		TotalMemSize   uint64 `json:"total"`
		SystemReserved uint64 `json:"systemReserved"`
		Allocatable    uint64 `json:"allocatable"`
		Reserved       uint64 `json:"reserved"`
		Free           uint64 `json:"free"`
	}

	// ContainerMemoryAssignments are the blocks of containers, by the pod's uid and the
	// container's name.
	ContainerMemoryAssignments map[string]map[string][]Block

	// Block is some memory of some NUMA nodes together.
	Block struct {
		NUMAAffinity []int               `json:"numaAffinity"`
		Type         corev1.ResourceName `json:"type"`
		Size         uint64              `json:"size"`
	}

	// Checksum is of the text of all the rest.
	Checksum uint64
)

// Clone is a copy that shares nothing.
func (m NUMANodeMap) Clone() NUMANodeMap {
	out := make(NUMANodeMap, len(m))
	for id, n := range m {
		c := &NUMANodeState{NumberOfAssignments: n.NumberOfAssignments, Cells: slices.Clone(n.Cells), MemoryMap: maps.Clone(n.MemoryMap)}
		for name, table := range c.MemoryMap {
			t := *table
			c.MemoryMap[name] = &t
		}
		out[id] = c
	}
	return out
}

// whole says whether nothing of what is pointed to is missing.
func (m NUMANodeMap) whole() bool {
	for _, n := range m {
		if n == nil {
			return false
		}
		for _, table := range n.MemoryMap {
			if table == nil {
				return false
			}
		}
	}
	return true
}

func checksum(c MemoryManagerCheckpoint) Checksum {
	c.Checksum = 0
	h := fnv.New32a()
	// The text is as upstream's kubelet writes a checkpoint down for its checksum.
	fmt.Fprintf(h, "%v", strings.Replace(dump.ForHash(&c), "(state.Checksum)", "(checksum.Checksum)", 1))
	return Checksum(h.Sum32())
}

// Write replaces the file.
func Write(path string, c MemoryManagerCheckpoint) error {
	c.Checksum = checksum(c)
	return statefile.Write(path, c, true)
}

// Read reads the file; ok is false if there is none.
func Read(path string) (c MemoryManagerCheckpoint, ok bool, err error) {
	// Upstream takes the checksum of maps that are there although they are empty.
	c.MachineState, c.Entries = NUMANodeMap{}, ContainerMemoryAssignments{}
	err = statefile.Read(path, &c)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	if !c.MachineState.whole() || c.Checksum != 0 && c.Checksum != checksum(c) {
		return c, false, errors.New("checkpoint is corrupted")
	}
	return c, true, nil
}
