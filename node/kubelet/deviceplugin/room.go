package deviceplugin

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/podspec"
)

// Lack names the first container of a pod that cannot have its devices, and says why in
// the words that Allocate would use; "" if there is enough for all. What is promised to
// others, who were admitted and have nothing yet, is not free; what those have who are not
// active, is. While it is not known who is active the kubelet has just started: plugins may
// not be back, and who has devices keeps them.
func (m *Manager) Lack(pod *corev1.Pod, others []*corev1.Pod, active map[types.UID]bool) (container string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wants := m.atOnce(pod)
	if len(wants) == 0 {
		return "", nil
	}
	if active != nil {
		m.keep(active)
	}
	free, again := map[string]int{}, map[string]int{}
	for name := range wants {
		if p := m.plugins[name]; p != nil {
			free[name] = len(p.healthy().without(m.inUse(name)))
		}
	}
	for _, o := range others {
		for name, n := range m.promised(o) {
			free[name] -= n
		}
	}
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		if err != nil || kind == podspec.EphemeralContainer {
			return
		}
		ends := kind == podspec.InitContainer && !podspec.IsSidecar(c)
		each := m.wanted(c)
		for _, name := range slices.Sorted(maps.Keys(each)) {
			if m.pods[pod.UID][c.Name][name] != nil && active == nil {
				continue
			}
			if err = m.lack(pod, c, name, each[name], ends, free, again); err != nil {
				container = c.Name
				return
			}
		}
	})
	return container, err
}

// lack says why a container cannot have devices of a resource, or counts them: free are
// nobody's, again those of the pod's containers that end before the next one starts. The
// lock is held.
func (m *Manager) lack(pod *corev1.Pod, c *corev1.Container, name string, n int, ends bool, free, again map[string]int) error {
	missing := max(n-again[name], 0)
	if have := m.pods[pod.UID][c.Name][name]; have != nil {
		if err := m.still(pod, c, name, n, have); err != nil {
			return err
		}
	} else {
		p := m.plugins[name]
		if p == nil {
			return fmt.Errorf("cannot allocate unregistered device %s", name)
		}
		if len(p.healthy()) == 0 {
			return fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
		}
		if left := max(free[name], 0); missing > left {
			return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, missing, left)
		}
		free[name] -= missing
	}
	if ends {
		again[name] += missing
	} else {
		again[name] = max(again[name]-n, 0)
	}
	return nil
}

// promised are the devices that a pod is still to get; the lock is held.
func (m *Manager) promised(pod *corev1.Pod) map[string]int {
	out := m.atOnce(pod)
	for name := range out {
		has := set{}
		for _, resources := range m.pods[pod.UID] {
			if a := resources[name]; a != nil {
				for id := range a.devices {
					has[id] = true
				}
			}
		}
		out[name] = max(out[name]-len(has), 0)
	}
	return out
}

// Room raises what is allocatable to what containers have or are promised, a pod and others
// among them: the Node may show less, while a plugin is away or a device that somebody has
// is not healthy.
func (m *Manager) Room(pod *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) corev1.ResourceList {
	m.mu.Lock()
	defer m.mu.Unlock()
	wants := m.promised(pod)
	if len(wants) == 0 {
		return allocatable
	}
	taken := map[string]int{}
	for name, n := range wants {
		taken[name] = n + len(m.inUse(name))
	}
	for _, o := range others {
		for name, n := range m.promised(o) {
			taken[name] += n
		}
	}
	allocatable = allocatable.DeepCopy()
	for name := range wants {
		if q := allocatable[corev1.ResourceName(name)]; q.Value() < int64(taken[name]) {
			allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(taken[name]), resource.DecimalSI)
		}
	}
	return allocatable
}
