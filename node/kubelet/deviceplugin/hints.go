package deviceplugin

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/topologymanager"
)

// Hints are the NUMA nodes that a container's devices could be near, for each of its
// resources; all are the machine's nodes.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container, all topologymanager.Nodes) (out []topologymanager.Hints) {
	wants := m.wants(c)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		out = append(out, m.hints(name, wants[name], m.pods[pod.UID][c.Name][name], m.reusable(pod, c, name), all))
	}
	return out
}

// PodHints are those of all containers of a pod together.
func (m *Manager) PodHints(pod *corev1.Pod, all topologymanager.Nodes) (out []topologymanager.Hints) {
	m.mu.Lock()
	defer m.mu.Unlock()
	total := m.atOnce(pod)
	for _, resources := range m.pods[pod.UID] {
		for name := range resources {
			if total[name] > 0 {
				return nil // they have what they have
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(total)) {
		out = append(out, m.hints(name, total[name], nil, set{}, all))
	}
	return out
}

// countless is more devices than a node has.
const countless = 1 << 30

// atOnce is how many devices of each resource a pod's containers have at the same time;
// the lock is held.
func (m *Manager) atOnce(pod *corev1.Pod) map[string]int {
	total, init, sidecars := map[string]int{}, map[string]int{}, map[string]int{}
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		for name, n := range m.wanted(c) {
			n = min(n, countless) // as many containers as a pod can have do not overflow
			switch {
			case kind == podspec.InitContainer && podspec.IsSidecar(c):
				sidecars[name] += n
			case kind == podspec.InitContainer:
				init[name] = max(init[name], sidecars[name]+n)
			default:
				total[name] += n
			}
		}
	})
	for name, n := range sidecars {
		total[name] += n
	}
	for name, n := range init {
		total[name] = max(total[name], n)
	}
	return total
}

// hints are those of one resource; the lock is held.
func (m *Manager) hints(name string, n int, has *allocation, reuse set, all topologymanager.Nodes) topologymanager.Hints {
	p := m.plugins[name]
	if p == nil || !slices.ContainsFunc(slices.Collect(maps.Values(p.devices)), func(d *pluginapi.Device) bool { return len(d.GetTopology().GetNodes()) > 0 }) {
		return nil
	}
	free := p.healthy().without(m.inUse(name))
	if has != nil {
		free, reuse = set{}, set{}
		for id := range has.devices {
			free[id] = true
		}
	}
	near := func(s set, nodes topologymanager.Nodes) (count int) {
		for id := range s {
			if slices.ContainsFunc(p.devices[id].GetTopology().GetNodes(), func(node *pluginapi.NUMANode) bool {
				return node.ID >= 0 && node.ID < 64 && nodes.Has(int(node.ID))
			}) {
				count++
			}
		}
		return count
	}
	every := set{}
	for id := range p.devices {
		every[id] = true
	}
	out, sets, least := topologymanager.Hints{}, topologymanager.Sets(all), all.Count()
	for _, s := range sets {
		if near(every, s) >= n {
			least = min(least, s.Count())
		}
	}
	for _, s := range sets {
		if near(reuse, s) == len(reuse) && near(free, s)+len(reuse) >= n {
			out = append(out, topologymanager.Hint{Nodes: s, Preferred: s.Count() == least})
		}
	}
	return out
}
