// Package memorymanager gives containers of Guaranteed pods memory and huge pages of as
// few NUMA nodes as can be, by upstream's policy Static. It reads what the machine's NUMA
// nodes have and writes who has what into upstream's file.
package memorymanager

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/node/kubelet/memorymanager/state"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/topologymanager"
)

// The policies.
const (
	None   = "None"
	Static = "Static"
)

// Config is what a Manager works with.
type Config struct {
	// Dir is the kubelet's root directory.
	Dir string
	// Policy is None or Static.
	Policy string
	// Nodes are the machine's NUMA nodes.
	Nodes []Node
	// Reserved is what is kept from pods, by NUMA node and resource in bytes.
	Reserved Reserved
}

// A Manager knows which containers have memory of which NUMA nodes.
type Manager struct {
	c           Config
	allocatable []state.Block

	mu    sync.Mutex
	nodes state.NUMANodeMap
	all   state.ContainerMemoryAssignments
	// reusable is the memory of init containers that have ended when others of their pod
	// start; it is of the pod that was asked about last.
	reusable    map[topologymanager.Nodes]map[corev1.ResourceName]uint64
	reusableFor types.UID
}

// New reads what an earlier run has given away.
func New(c Config) (*Manager, error) {
	m := &Manager{c: c, nodes: state.NUMANodeMap{}, all: state.ContainerMemoryAssignments{}}
	path := filepath.Join(c.Dir, state.Name)
	have, ok, err := state.Read(path)
	if err != nil {
		return nil, c.notRestored(err)
	}
	if err := c.check(have, ok); err != nil || c.Policy != Static {
		return m, err
	}
	if m.nodes, err = c.untouched(); err != nil {
		return nil, err
	}
	m.allocatable = allocatable(m.nodes)
	if len(have.MachineState) == 0 && len(have.Entries) > 0 {
		return nil, fmt.Errorf("start memory manager error: [memorymanager] machine state can not be empty when it has memory assignments")
	}
	if ok && len(have.MachineState) > 0 {
		if err := expect(m.nodes, have); err != nil {
			return nil, fmt.Errorf("start memory manager error: %w, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet", err, path)
		}
		m.nodes, m.all = have.MachineState, have.Entries
	}
	return m, m.save()
}

// Check says what New would refuse of a configuration, and writes nothing. Which memory an
// earlier run has given away is not looked at: that is no mistake of the configuration's.
func Check(c Config) error {
	have, ok, err := state.Read(filepath.Join(c.Dir, state.Name))
	return c.check(have, ok && err == nil)
}

func (c Config) notRestored(err error) error {
	return fmt.Errorf("start memory manager error: could not restore state from checkpoint: %w, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet", err, filepath.Join(c.Dir, state.Name))
}

// check says what is wrong with a configuration on this machine, beside a checkpoint of
// which it only needs the policy.
func (c Config) check(have state.MemoryManagerCheckpoint, ok bool) error {
	if ok && have.PolicyName != c.Policy {
		return c.notRestored(fmt.Errorf("[memorymanager] configured policy %q differs from state checkpoint policy %q", c.Policy, have.PolicyName))
	}
	if c.Policy != Static {
		return nil
	}
	if most := 16; len(c.Nodes) > most { // all sets of them are looked at
		return fmt.Errorf("unsupported on machines with more than %v NUMA Nodes", most)
	}
	var reserved uint64
	for _, of := range c.Reserved {
		reserved += of[corev1.ResourceMemory]
	}
	if reserved == 0 {
		return errors.New("[memorymanager] you should specify the system reserved memory; set memory in reservedMemory (--reserved-memory)")
	}
	_, err := c.untouched()
	return err
}

// save writes the checkpoint; the lock is held, or nobody else knows m yet.
func (m *Manager) save() error {
	return state.Write(filepath.Join(m.c.Dir, state.Name), state.MemoryManagerCheckpoint{PolicyName: m.c.Policy, MachineState: m.nodes, Entries: m.all})
}

// Wants says whether containers of a pod are to have memory of certain NUMA nodes.
func (m *Manager) Wants(pod *corev1.Pod) bool {
	return m.c.Policy == Static && podspec.QOS(pod) == corev1.PodQOSGuaranteed && !resourcehelper.IsPodLevelResourcesSet(pod)
}

// requests are the bytes that a container asks for.
type requests map[corev1.ResourceName]uint64

func requested(c *corev1.Container) (requests, error) {
	out := requests{}
	for name, q := range c.Resources.Requests {
		if name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			continue
		}
		n, ok := q.AsInt64()
		if !ok || n < 0 {
			return nil, fmt.Errorf("[memorymanager] failed to represent quantity as int64")
		}
		out[name] = uint64(n)
	}
	return out, nil
}

// ended says whether a container is an init container whose memory others of its pod have
// by now: it is not given any when the pod is admitted again by another run of the
// kubelet. The lock is held.
func (m *Manager) ended(pod *corev1.Pod, c *corev1.Container) bool {
	found, later := false, false
	podspec.EachContainer(pod, func(o *corev1.Container, _ podspec.ContainerKind) {
		later = later || found && m.all[string(pod.UID)][o.Name] != nil
		found = found || o.Name == c.Name
	})
	return later && isInit(pod, c.Name)
}

// isInit says whether a container is one that ends before the pod's others start.
func isInit(pod *corev1.Pod, name string) bool {
	c, kind := podspec.FindContainer(pod, name)
	return kind == podspec.InitContainer && !podspec.IsSidecar(c)
}

// Allocate gives a container its memory, of the right NUMA nodes.
func (m *Manager) Allocate(pod *corev1.Pod, c *corev1.Container, near topologymanager.Hint) error {
	if !m.Wants(pod) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	uid := string(pod.UID)
	if has := m.all[uid][c.Name]; has != nil {
		m.reuse(pod, c, has)
		return nil
	}
	if m.ended(pod, c) {
		return nil
	}
	want, err := requested(c)
	if err != nil {
		return err
	}
	on, err := m.choose(pod.UID, want, near)
	if err != nil {
		return err
	}
	var blocks []state.Block
	for _, name := range slices.Sorted(maps.Keys(want)) {
		blocks = append(blocks, state.Block{NUMAAffinity: on.IDs(), Type: name, Size: want[name]})
		take(m.nodes, on.IDs(), name, want[name]-min(want[name], m.reusableOf(pod.UID, on, name)))
	}
	m.reuse(pod, c, blocks)
	if m.all[uid] == nil {
		m.all[uid] = map[string][]state.Block{}
	}
	m.all[uid][c.Name] = blocks
	m.shrinkInit(pod, c, blocks)
	return m.save()
}

// Started frees the memory of the init containers that have ended, because a container
// after them starts.
func (m *Manager) Started(pod *corev1.Pod, container string) error {
	if m.c.Policy != Static {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		if !podspec.IsSidecar(c) && m.all[string(pod.UID)][c.Name] != nil {
			m.remove(string(pod.UID), c.Name)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return m.save()
}

// Prune takes their memory from pods that have ended.
func (m *Manager) Prune(active map[types.UID]bool) error {
	return m.free(func(pod types.UID) bool { return !active[pod] })
}

// Forget takes its memory from a pod.
func (m *Manager) Forget(pod types.UID) error {
	return m.free(func(other types.UID) bool { return other == pod })
}

func (m *Manager) free(of func(types.UID) bool) error {
	if m.c.Policy != Static {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for uid, containers := range m.all {
		if !of(types.UID(uid)) {
			continue
		}
		for name := range containers {
			m.remove(uid, name)
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return m.save()
}

// remove takes its memory from a container; the lock is held.
func (m *Manager) remove(uid, container string) {
	release(m.nodes, m.all[uid][container])
	delete(m.all[uid], container)
	if len(m.all[uid]) == 0 {
		delete(m.all, uid)
	}
}

// Nodes are the NUMA nodes that a container's memory is of, as control groups have them;
// "" for any.
func (m *Manager) Nodes(pod types.UID, container string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var on topologymanager.Nodes
	for _, b := range m.all[string(pod)][container] {
		on |= topologymanager.NodesOf(b.NUMAAffinity...)
	}
	var ids []string
	for _, id := range on.IDs() {
		ids = append(ids, strconv.Itoa(id))
	}
	return strings.Join(ids, ",")
}

// Blocks are what a container has.
func (m *Manager) Blocks(pod types.UID, container string) []state.Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all[string(pod)][container])
}

// Allocatable is what containers can have of each NUMA node.
func (m *Manager) Allocatable() []state.Block { return m.allocatable }
