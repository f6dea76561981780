package memorymanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/memorymanager/state"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/topologymanager"
)

// Init containers end before the others of their pod start, which can have their memory.
// The sum of the blocks of a pod stays what the pod was given: what another container
// takes over goes from the init container's block.

// reusableOf is how much of a resource a pod's init containers have had on some nodes; the
// lock is held.
func (m *Manager) reusableOf(pod types.UID, on topologymanager.Nodes, name corev1.ResourceName) uint64 {
	if m.reusableFor != pod {
		return 0
	}
	return m.reusable[on][name]
}

// reuse counts what a container adds to the memory that its pod can use again, or takes of
// it; the lock is held.
func (m *Manager) reuse(pod *corev1.Pod, c *corev1.Container, blocks []state.Block) {
	if m.reusableFor != pod.UID {
		m.reusableFor, m.reusable = pod.UID, map[topologymanager.Nodes]map[corev1.ResourceName]uint64{}
	}
	init := isInit(pod, c.Name)
	for _, b := range blocks {
		on := topologymanager.NodesOf(b.NUMAAffinity...)
		of := m.reusable[on]
		if of == nil {
			of = map[corev1.ResourceName]uint64{}
			m.reusable[on] = of
		}
		if init {
			of[b.Type] = max(of[b.Type], b.Size)
		} else {
			of[b.Type] -= min(of[b.Type], b.Size)
		}
	}
}

// shrinkInit takes from the blocks of the init containers before a container what it has
// of theirs; the lock is held.
func (m *Manager) shrinkInit(pod *corev1.Pod, c *corev1.Container, blocks []state.Block) {
	for _, b := range blocks {
		left := b.Size
		for i := range pod.Spec.InitContainers {
			o := &pod.Spec.InitContainers[i]
			if o.Name == c.Name {
				break
			}
			if podspec.IsSidecar(o) {
				continue
			}
			theirs := m.all[string(pod.UID)][o.Name]
			for j := range theirs {
				if theirs[j].Type == b.Type && sameNodes(theirs[j].NUMAAffinity, b.NUMAAffinity) {
					part := min(left, theirs[j].Size)
					theirs[j].Size -= part
					left -= part
				}
			}
		}
	}
}
