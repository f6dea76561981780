// Package deviceplugin lets device plugins offer resources of this node and gives their
// devices to containers. It serves the registration socket and reads the plugins' sockets
// in the directory device-plugins of the kubelet's root directory, where it keeps which
// container has what in upstream's checkpoint.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/internal/run"
	"knarr/node/kubelet/deviceplugin/checkpoint"
	"knarr/node/kubelet/podspec"
)

const (
	// callTime bounds a call of a plugin.
	callTime = 2 * time.Minute
	// gracePeriod is how long the resources of a plugin that has gone stay on the Node.
	gracePeriod = 5 * time.Minute
	// maxMessage bounds what a plugin answers.
	maxMessage = 16 << 20
	// maxPlugins bounds the resources that plugins register.
	maxPlugins = 256
)

// Config is what a Manager works with.
type Config struct {
	// RootDir is the kubelet's root directory.
	RootDir string
	// Active are the pods of the node that have not ended; ok false while they are not
	// known yet. What others had is free.
	Active func() (pods map[types.UID]bool, ok bool)
	// Near says which NUMA nodes a container is to use; nil: any.
	Near func(pod types.UID, container string) map[int64]bool
	// Changed is called when the resources of the node have changed, and Health when the
	// health of a pod's devices has.
	Changed func()
	Health  func(types.UID)
	// Registered and Allocated count and measure; nil: nobody does.
	Registered func(resource string)
	Allocated  func(resource string, took time.Duration)
}

// A Manager knows the plugins of the node and who has which of their devices.
type Manager struct {
	cfg Config
	dir string

	mu      sync.Mutex
	plugins map[string]*plugin // by resource
	pods    map[types.UID]map[string]map[string]*allocation
	loops   run.Group
	ctx     context.Context
}

// A plugin offers one resource.
type plugin struct {
	resource string
	conn     *grpc.ClientConn // nil: it has not come back since the kubelet started
	client   pluginapi.DevicePluginClient
	options  *pluginapi.DevicePluginOptions
	devices  map[string]*pluginapi.Device
	stopped  time.Time     // when it went; zero while it is there
	turn     chan struct{} // held by who allocates
}

// An allocation is what a container has of a resource.
type allocation struct {
	devices map[string][]int64 // to NUMA nodes
	answer  *pluginapi.ContainerAllocateResponse
}

// New reads the checkpoint of an earlier run.
func New(c Config) *Manager {
	m := &Manager{
		cfg: c, dir: filepath.Join(c.RootDir, "device-plugins"),
		plugins: map[string]*plugin{}, pods: map[types.UID]map[string]map[string]*allocation{},
	}
	entries, registered, err := checkpoint.Read(m.dir)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			slog.Warn("Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date", "err", err)
		}
		return m
	}
	for _, e := range entries {
		a := &allocation{devices: map[string][]int64{}, answer: &pluginapi.ContainerAllocateResponse{}}
		for node, ids := range e.DeviceIDs {
			for _, id := range ids {
				if node >= 0 {
					a.devices[id] = append(a.devices[id], node)
				} else if a.devices[id] == nil {
					a.devices[id] = nil
				}
			}
		}
		if err := proto.Unmarshal(e.AllocResp, a.answer); err != nil {
			slog.Warn("leave out a container's devices", "pod", e.PodUID, "container", e.ContainerName, "err", err)
			continue
		}
		m.put(types.UID(e.PodUID), e.ContainerName, e.ResourceName, a)
	}
	for name := range registered {
		m.plugins[name] = newPlugin(name)
		m.plugins[name].stopped = time.Now()
	}
	return m
}

func newPlugin(resource string) *plugin {
	return &plugin{resource: resource, devices: map[string]*pluginapi.Device{}, turn: make(chan struct{}, 1)}
}

func (m *Manager) put(pod types.UID, container, resource string, a *allocation) {
	if m.pods[pod] == nil {
		m.pods[pod] = map[string]map[string]*allocation{}
	}
	if m.pods[pod][container] == nil {
		m.pods[pod][container] = map[string]*allocation{}
	}
	m.pods[pod][container][resource] = a
}

// save writes the checkpoint; the lock is held.
func (m *Manager) save() error {
	entries, registered := []checkpoint.PodDevicesEntry{}, map[string][]string{}
	for uid, containers := range m.pods {
		for name, resources := range containers {
			for resource, a := range resources {
				answer, err := proto.Marshal(a.answer)
				if err != nil {
					return err
				}
				per := checkpoint.DevicesPerNUMA{}
				for _, id := range slices.Sorted(maps.Keys(a.devices)) {
					nodes := a.devices[id]
					if len(nodes) == 0 {
						nodes = []int64{-1}
					}
					for _, n := range nodes {
						per[n] = append(per[n], id)
					}
				}
				entries = append(entries, checkpoint.PodDevicesEntry{PodUID: string(uid), ContainerName: name, ResourceName: resource, DeviceIDs: per, AllocResp: answer})
			}
		}
	}
	for name, p := range m.plugins {
		registered[name] = p.healthy().ids()
	}
	if err := checkpoint.Write(m.dir, entries, registered); err != nil {
		return fmt.Errorf("failed to write checkpoint file %q: %w", checkpoint.Name, err)
	}
	return nil
}

// healthy are the devices that may be given away.
func (p *plugin) healthy() set {
	out := set{}
	if !p.stopped.IsZero() {
		return out
	}
	for id, d := range p.devices {
		if d.Health == pluginapi.Healthy {
			out[id] = true
		}
	}
	return out
}

// inUse are the devices of a resource that containers have.
func (m *Manager) inUse(resource string) set {
	out := set{}
	for _, containers := range m.pods {
		for _, resources := range containers {
			if a := resources[resource]; a != nil {
				for id := range a.devices {
					out[id] = true
				}
			}
		}
	}
	return out
}

// Resources are what the Node shows: what plugins have, what of it is healthy, and which
// resources have gone since.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList, gone []corev1.ResourceName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, p := range m.plugins {
		if !p.stopped.IsZero() && time.Since(p.stopped) >= gracePeriod {
			delete(m.plugins, name)
			gone = append(gone, corev1.ResourceName(name))
			continue
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(p.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(p.healthy())), resource.DecimalSI)
	}
	if len(gone) > 0 {
		if err := m.save(); err != nil {
			slog.Warn("keep which container has which device", "err", err)
		}
	}
	return capacity, allocatable, gone
}

// wants are the resources of plugins that a container asks for, by name.
func (m *Manager) wants(c *corev1.Container) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wanted(c)
}

// wanted is wants; the lock is held.
func (m *Manager) wanted(c *corev1.Container) map[string]int {
	var out map[string]int
	for name, q := range c.Resources.Limits {
		if q.Value() <= 0 || m.plugins[string(name)] == nil && len(m.inUse(string(name))) == 0 {
			continue
		}
		if out == nil {
			out = map[string]int{}
		}
		out[string(name)] = int(q.Value())
	}
	return out
}

// Needs says whether containers of a pod have to be given devices that they have not.
func (m *Manager) Needs(pod *corev1.Pod) (needs bool) {
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		for name := range m.wants(c) {
			needs = needs || m.has(pod.UID, c.Name, name) == nil
		}
	})
	return needs
}

func (m *Manager) has(pod types.UID, container, resource string) *allocation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[pod][container][resource]
}

// Allocate gives a pod's containers their devices, in the order in which they start.
func (m *Manager) Allocate(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		if len(errs) == 0 && kind != podspec.EphemeralContainer {
			errs = append(errs, m.allocate(ctx, pod, c))
			if errs[0] == nil {
				errs = nil
			}
		}
	})
	return errors.Join(errs...)
}

func (m *Manager) allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container) error {
	wants := m.wants(c)
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		if have := m.has(pod.UID, c.Name, name); have != nil {
			m.mu.Lock()
			err := m.still(pod, c, name, wants[name], have)
			m.mu.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		if err := m.give(ctx, pod, c, name, wants[name]); err != nil {
			return err
		}
	}
	return nil
}

// still says why a container cannot keep the devices it has; the lock is held.
func (m *Manager) still(pod *corev1.Pod, c *corev1.Container, name string, n int, have *allocation) error {
	if len(have.devices) != n {
		return fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod.UID, c.Name, name, len(have.devices), n)
	}
	p := m.plugins[name]
	if p == nil {
		return fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	healthy := p.healthy()
	if len(healthy) == 0 {
		return fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	for id := range have.devices {
		if !healthy[id] {
			return fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", name)
		}
	}
	return nil
}

// give chooses devices of one resource for a container and tells the plugin. Others that
// want the same resource wait meanwhile.
func (m *Manager) give(ctx context.Context, pod *corev1.Pod, c *corev1.Container, name string, n int) error {
	m.mu.Lock()
	p := m.plugins[name]
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	m.prune()
	q, client, err := m.ask(ctx, pod, c, p, n)
	if err != nil {
		return err
	}
	ids, err := q.choose()
	if err != nil {
		return err
	}
	began := time.Now()
	res, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids.ids()}}})
	if m.cfg.Allocated != nil {
		m.cfg.Allocated(name, time.Since(began))
	}
	if err != nil {
		return err
	}
	if len(res.ContainerResponses) == 0 {
		return fmt.Errorf("no containers return in allocation response %v", res)
	}
	a := &allocation{devices: map[string][]int64{}, answer: res.ContainerResponses[0]}
	for id := range ids {
		a.devices[id] = nil
		for _, node := range q.devices[id].GetTopology().GetNodes() {
			a.devices[id] = append(a.devices[id], node.ID)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(pod.UID, c.Name, name, a)
	return m.save()
}

// ask is what devices of a plugin are chosen by.
func (m *Manager) ask(ctx context.Context, pod *corev1.Pod, c *corev1.Container, p *plugin, n int) (question, pluginapi.DevicePluginClient, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	healthy := p.healthy()
	if len(healthy) == 0 {
		return question{}, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", p.resource)
	}
	q := question{
		resource: p.resource, need: n, devices: maps.Clone(p.devices),
		reuse: m.reusable(pod, c, p.resource).and(healthy), free: healthy.without(m.inUse(p.resource)),
	}
	if m.cfg.Near != nil {
		q.near = m.cfg.Near(pod.UID, c.Name)
	}
	client := p.client
	if p.options.GetGetPreferredAllocationAvailable() {
		q.prefer = func(available, must set, size int) ([]string, error) {
			res, err := client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: available.ids(), MustIncludeDeviceIDs: must.ids(), AllocationSize: int32(size)}}})
			if err != nil || len(res.ContainerResponses) == 0 {
				return nil, err
			}
			return res.ContainerResponses[0].DeviceIDs, nil
		}
	}
	return q, client, nil
}

// reusable are the devices of init containers which have ended when this one starts.
func (m *Manager) reusable(pod *corev1.Pod, c *corev1.Container, resource string) set {
	out := set{}
	for i := range pod.Spec.InitContainers {
		other := &pod.Spec.InitContainers[i]
		if other.Name == c.Name {
			break
		}
		if a := m.pods[pod.UID][other.Name][resource]; a != nil && !podspec.IsSidecar(other) {
			for id := range a.devices {
				out[id] = true
			}
		}
	}
	podspec.EachContainer(pod, func(other *corev1.Container, kind podspec.ContainerKind) {
		if kind == podspec.InitContainer && !podspec.IsSidecar(other) {
			return
		}
		if a := m.pods[pod.UID][other.Name][resource]; a != nil {
			for id := range a.devices {
				delete(out, id)
			}
		}
	})
	return out
}

// prune takes their devices from pods that have ended.
func (m *Manager) prune() {
	active, ok := m.cfg.Active()
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(active)
}

// keep takes their devices from pods that are not active; the lock is held.
func (m *Manager) keep(active map[types.UID]bool) {
	maps.DeleteFunc(m.pods, func(uid types.UID, _ map[string]map[string]*allocation) bool { return !active[uid] })
}

// Forget takes its devices from a pod.
func (m *Manager) Forget(pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[pod] == nil {
		return nil
	}
	delete(m.pods, pod)
	return m.save()
}

// Answers are what plugins want of a container, once they were told that it starts.
func (m *Manager) Answers(ctx context.Context, pod *corev1.Pod, c *corev1.Container) ([]*pluginapi.ContainerAllocateResponse, error) {
	wants := m.wants(c)
	if len(wants) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		if m.has(pod.UID, c.Name, name) == nil {
			if err := m.give(ctx, pod, c, name, wants[name]); err != nil {
				return nil, err
			}
		}
	}
	var out []*pluginapi.ContainerAllocateResponse
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		a := m.has(pod.UID, c.Name, name)
		if err := m.preStart(ctx, name, a); err != nil {
			return nil, err
		}
		if a != nil {
			out = append(out, a.answer)
		}
	}
	return out, nil
}

func (m *Manager) preStart(ctx context.Context, name string, a *allocation) error {
	m.mu.Lock()
	p := m.plugins[name]
	if p == nil || !p.options.GetPreStartRequired() || a == nil || p.client == nil {
		m.mu.Unlock()
		return nil
	}
	client := p.client
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: slices.Sorted(maps.Keys(a.devices))}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}
