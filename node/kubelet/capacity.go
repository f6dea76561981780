package kubelet

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/nodeallocatable"
)

// dropHugepages takes pages of sizes away that the machine had at another start.
func dropHugepages(s *corev1.NodeStatus, has map[string]int64) {
	gone := func(name corev1.ResourceName, _ resource.Quantity) bool {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		_, there := has[size]
		return ok && !there
	}
	maps.DeleteFunc(s.Capacity, gone)
	maps.DeleteFunc(s.Allocatable, gone)
}

// setResources shows what the node has and what of it pods can have. Extended resources
// that others put into the capacity stay and can be had whole, until they are taken out.
func setResources(s *corev1.NodeStatus, capacity, allocatable corev1.ResourceList) {
	for name, q := range capacity {
		s.Capacity[name], s.Allocatable[name] = q, allocatable[name]
	}
	maps.DeleteFunc(s.Allocatable, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, there := s.Capacity[name]
		return !there && strings.Contains(string(name), "/")
	})
	for name, q := range s.Capacity {
		if _, own := capacity[name]; !own {
			s.Allocatable[name] = q
		}
	}
}

func (k *Kubelet) capacity() corev1.ResourceList {
	l := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(k.machine.cpus), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(k.machine.memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(int64(k.maxPods()), resource.DecimalSI),
	}
	if d, err := k.statDisk(k.cfg.RootDir); err == nil && *k.cfg.Settings.LocalStorageCapacityIsolation {
		l[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(d.size), resource.BinarySI)
	}
	maps.Copy(l, k.machineHugepages())
	return l
}

// machineHugepages are the bytes of each size of huge pages that the machine has.
func (k *Kubelet) machineHugepages() corev1.ResourceList {
	l := corev1.ResourceList{}
	for size, n := range k.machine.hugepages {
		l[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(n, resource.BinarySI)
	}
	return l
}

// reserve is what is left for pods of a capacity.
func (k *Kubelet) reserve(capacity corev1.ResourceList) corev1.ResourceList {
	hard := k.hardReserved(capacity)
	out := nodeallocatable.Config{Capacity: capacity, Settings: k.cfg.Settings}.Absolute()
	for name, q := range out {
		q.Sub(hard[name])
		switch name {
		case corev1.ResourceMemory:
			for _, n := range k.machine.hugepages {
				q.Sub(*resource.NewQuantity(n, resource.BinarySI))
			}
		case corev1.ResourceEphemeralStorage:
			q.Format = resource.DecimalSI
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		out[name] = q
	}
	return out
}

func (k *Kubelet) allocatable() corev1.ResourceList {
	if n := k.node.Load(); n != nil && len(n.Status.Allocatable) > 0 {
		return n.Status.Allocatable
	}
	return k.reserve(k.capacity())
}
