package deviceplugin

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A Device is one of a resource, and the NUMA nodes it is near.
type Device struct {
	Resource, ID string
	Nodes        []int64
}

func sorted(devices []Device) []Device {
	slices.SortFunc(devices, func(a, b Device) int {
		if c := strings.Compare(a.Resource, b.Resource); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return devices
}

// Of are the devices of a container.
func (m *Manager) Of(pod types.UID, container string) (out []Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for resource, a := range m.pods[pod][container] {
		for id, nodes := range a.devices {
			out = append(out, Device{resource, id, nodes})
		}
	}
	return sorted(out)
}

// Allocatable are all healthy devices.
func (m *Manager) Allocatable() (out []Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for resource, p := range m.plugins {
		for id := range p.healthy() {
			d := Device{Resource: resource, ID: id}
			for _, n := range p.devices[id].GetTopology().GetNodes() {
				d.Nodes = append(d.Nodes, n.ID)
			}
			out = append(out, d)
		}
	}
	return sorted(out)
}

// Status is what a container's status says of the health of its devices.
func (m *Manager) Status(pod types.UID, container string) (out []corev1.ResourceStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resources := m.pods[pod][container]
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		s := corev1.ResourceStatus{Name: corev1.ResourceName(name)}
		p := m.plugins[name]
		for _, id := range slices.Sorted(maps.Keys(resources[name].devices)) {
			health := corev1.ResourceHealthStatusHealthy
			if p != nil && (!p.stopped.IsZero() && p.conn != nil || p.devices[id] != nil && p.devices[id].Health != pluginapi.Healthy) {
				health = corev1.ResourceHealthStatusUnhealthy
			}
			s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
		}
		out = append(out, s)
	}
	return out
}
