package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/cpumanager"
	"knarr/node/kubelet/memorymanager"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/topologymanager"
)

// alignment is which NUMA nodes containers are to use.
type alignment struct {
	policy *topologymanager.Policy
	nodes  topologymanager.Nodes // the machine's

	mu  sync.Mutex
	all map[types.UID]map[string]topologymanager.Nodes
}

func (a *alignment) set(pod types.UID, container string, near topologymanager.Nodes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all[pod] == nil {
		a.all[pod] = map[string]topologymanager.Nodes{}
	}
	a.all[pod][container] = near
}

// near are the nodes a container is to use; nil: any.
func (a *alignment) near(pod types.UID, container string) map[int64]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[pod][container].Map()
}

func (a *alignment) forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, pod)
}

// managerConfigs are what the managers of CPUs and memory work with, and the policy that
// aligns what they give.
type managerConfigs struct {
	cpus   cpumanager.Config
	memory memorymanager.Config
	policy *topologymanager.Policy
}

// newManagers makes what gives CPUs and memory to containers and aligns them with devices.
func (k *Kubelet) newManagers(sys string) error {
	c, err := k.managerConfigs(sys)
	if err != nil {
		return err
	}
	k.alignment.all, k.alignment.policy, k.alignment.nodes = map[types.UID]map[string]topologymanager.Nodes{}, c.policy, c.policy.All
	if k.cpus, err = cpumanager.New(c.cpus); err != nil {
		return err
	}
	if c.cpus.Policy == cpumanager.Static {
		k.metrics.managers.showStatic()
	}
	k.memory, err = memorymanager.New(c.memory)
	return err
}

// managerConfigs reads what the machine has, and says what is wrong with settings on it.
func (k *Kubelet) managerConfigs(sys string) (c managerConfigs, err error) {
	s := k.cfg.Settings
	t, err := cpumanager.ReadTopology(sys)
	if err != nil {
		if s.CPUManagerPolicy != cpumanager.None || s.TopologyManagerPolicy != topologymanager.None || s.ReservedSystemCPUs != "" {
			return c, err
		}
		slog.Warn("where the machine's CPUs are is not known", "err", err)
	}
	if c.policy, err = topologymanager.New(s.TopologyManagerPolicy, s.TopologyManagerScope, s.TopologyManagerPolicyOptions, t.Nodes(), t.Distances); err != nil {
		return c, fmt.Errorf("topologyManagerPolicyOptions (--topology-manager-policy-options): %w", err)
	}
	if c.cpus, err = cpuConfig(s, t); err != nil {
		return c, err
	}
	c.cpus.Dir = k.cfg.RootDir
	c.memory, err = k.memoryConfig(sys)
	return c, err
}

// cpuConfig is what CPUs are given by.
func cpuConfig(s *configuration.Settings, t cpumanager.Topology) (c cpumanager.Config, err error) {
	var milli int64
	for _, of := range []map[string]string{s.SystemReserved, s.KubeReserved} {
		q := configuration.Reserved(of)[corev1.ResourceCPU]
		milli += q.MilliValue()
	}
	c = cpumanager.Config{
		Policy: s.CPUManagerPolicy, Topology: t, Reserved: int((milli + 999) / 1000),
		ReservedSet: cpuset.New(), SingleNode: s.TopologyManagerPolicy == topologymanager.SingleNode,
	}
	if s.ReservedSystemCPUs != "" {
		if c.ReservedSet, err = cpuset.Parse(s.ReservedSystemCPUs); err != nil {
			return c, err
		}
		if online := t.Online(); !c.ReservedSet.IsSubsetOf(online) {
			return c, fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s; take some of these in reservedSystemCPUs (--reserved-cpus)", s.ReservedSystemCPUs, online)
		}
		c.Reserved = c.ReservedSet.Size()
	}
	if c.Policy != cpumanager.Static {
		if n := len(s.CPUManagerPolicyOptions); n > 0 {
			return c, fmt.Errorf("new none policy error: None policy: received unsupported options=%v; leave cpuManagerPolicyOptions (--cpu-manager-policy-options) out, or set cpuManagerPolicy (--cpu-manager-policy) to static", s.CPUManagerPolicyOptions)
		}
		return c, nil
	}
	if c.Options, err = cpumanager.ParseOptions(s.CPUManagerPolicyOptions, s.FeatureGates); err != nil {
		err = fmt.Errorf("new static policy error: %w", err)
	}
	return c, err
}

// memoryConfig is what memory of NUMA nodes is given by.
func (k *Kubelet) memoryConfig(sys string) (memorymanager.Config, error) {
	c := memorymanager.Config{Dir: k.cfg.RootDir, Policy: k.cfg.Settings.MemoryManagerPolicy}
	if c.Policy != memorymanager.Static {
		return c, nil
	}
	var err error
	if c.Nodes, err = memorymanager.ReadNodes(sys, k.machine.memory, k.machine.hugepages); err != nil {
		return c, err
	}
	if c.Reserved, err = memorymanager.ReservedBy(k.cfg.Settings.ReservedMemory, k.reserved(), c.Nodes); err != nil {
		err = fmt.Errorf("%w; reservedMemory (--reserved-memory) has to be of this machine's NUMA nodes, and as much together as systemReserved, kubeReserved and the hard threshold memory.available", err)
	}
	return c, err
}

// reserved is what is kept from pods of the whole node.
func (k *Kubelet) reserved() corev1.ResourceList {
	s, out := k.cfg.Settings, k.hardReserved(k.capacity())
	for _, of := range []map[string]string{s.SystemReserved, s.KubeReserved} {
		for name, q := range configuration.Reserved(of) {
			sum := out[name]
			sum.Add(q)
			out[name] = sum
		}
	}
	return out
}

// prune takes their CPUs and memory from pods that have ended.
func (k *Kubelet) prune(active map[types.UID]bool) {
	if err := k.cpus.Prune(active); err != nil {
		slog.Warn("keep which container has which CPUs", "err", err)
	}
	if err := k.memory.Prune(active); err != nil {
		slog.Warn("keep which container has memory of which NUMA nodes", "err", err)
	}
}

// release takes back what a pod was given that is not to run after all: upstream's
// kubelet finds out when it gives the next pod something.
func (k *Kubelet) release(pod types.UID) {
	k.alignment.forget(pod)
	if k.cpus == nil {
		return
	}
	if err := errors.Join(k.cpus.Forget(pod), k.memory.Forget(pod), k.devices.Forget(pod)); err != nil {
		slog.Warn("keep what a pod gave back", "uid", pod, "err", err)
	}
	k.wakeCPUs()
}

// align gives the containers of a pod their CPUs and memory, near their devices, or says
// why the pod is not taken; others are the pods that were taken before. The lock is held.
func (k *Kubelet) align(pod *corev1.Pod, others []*corev1.Pod) *rejection {
	if k.cpus == nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	var active map[types.UID]bool
	if k.synced.isOpen() && k.static.isOpen() {
		active = k.active()
		active[pod.UID] = true
		k.prune(active)
	}
	began, m := time.Now(), &k.metrics.managers
	m.alignments.Inc()
	var lacks string
	var why error
	if pod.Status.StartTime == nil { // those that run have what they have
		lacks, why = k.devices.Lack(pod, others, active)
	}
	r := k.alignAll(pod, lacks, why)
	m.alignTook.Observe(float64(time.Since(began).Milliseconds()))
	if r != nil && k.alignment.policy.Name != topologymanager.None { // with none there is nothing to align
		m.misalignments.Inc()
	}
	k.wakeCPUs()
	return r
}

// alignAll aligns a pod as a whole, or each of its containers. Their devices are given to
// them once the pod is taken, since plugins are slow; lacks is the container for which
// there are too few, and why says so.
func (k *Kubelet) alignAll(pod *corev1.Pod, lacks string, why error) *rejection {
	p := k.alignment.policy
	var whole topologymanager.Hint
	if p.Scope == topologymanager.PodScope {
		var admit bool
		if whole, admit = p.Merge(slices.Concat([]topologymanager.Hints{k.cpus.PodHints(pod)}, k.memory.PodHints(pod), k.devices.PodHints(pod, k.alignment.nodes))); !admit {
			return k.misaligned()
		}
	}
	var r *rejection
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		if r != nil || kind == podspec.EphemeralContainer {
			return
		}
		best := whole
		if p.Scope != topologymanager.PodScope {
			var admit bool
			best, admit = p.Merge(slices.Concat([]topologymanager.Hints{k.cpus.Hints(pod, c)}, k.memory.Hints(pod, c), k.devices.Hints(pod, c, k.alignment.nodes)))
			if !admit {
				r = k.misaligned()
				return
			}
		}
		k.alignment.set(pod.UID, c.Name, best.Nodes)
		if why != nil && c.Name == lacks {
			r = unexpected(why)
			return
		}
		if r = k.allocateCPUs(pod, c, best.Nodes); r == nil {
			r = k.allocateMemory(pod, c, best)
		}
		if r == nil && p.Scope != topologymanager.PodScope {
			k.onOneNode(k.metrics.managers.aligned)
		}
	})
	if r == nil && p.Scope == topologymanager.PodScope {
		k.onOneNode(k.metrics.managers.aligned)
	}
	return r
}

// unexpected is what upstream calls whatever keeps a manager from giving something.
func unexpected(err error) *rejection {
	return &rejection{"UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

func (k *Kubelet) misaligned() *rejection {
	k.onOneNode(k.metrics.managers.unaligned)
	return &rejection{"TopologyAffinityError", "Resources cannot be allocated with Topology locality"}
}

// onOneNode counts where the policy promises that all is of a single NUMA node.
func (k *Kubelet) onOneNode(counts *prometheus.CounterVec) {
	if p := k.alignment.policy; p.Name == topologymanager.SingleNode {
		counts.WithLabelValues(p.Scope, numaNode).Inc()
	}
}

func (k *Kubelet) allocateCPUs(pod *corev1.Pod, c *corev1.Container, near topologymanager.Nodes) *rejection {
	if k.cpus.Wants(pod, c) == 0 {
		return nil
	}
	m, had := &k.metrics.managers, !k.cpus.Exclusive(pod.UID, c.Name).IsEmpty()
	m.pinnings.Inc()
	err := k.cpus.Allocate(pod, c, near)
	if cores := m.aligned; k.cpus.FullCores() {
		if err != nil {
			cores = m.unaligned
		}
		cores.WithLabelValues(topologymanager.ContainerScope, physicalCPU).Inc()
	}
	if err == nil {
		if !had && k.cpus.OneCache(pod.UID, c.Name) {
			m.aligned.WithLabelValues(topologymanager.ContainerScope, uncoreCache).Inc()
		}
		return nil
	}
	m.pinningErrors.Inc()
	if odd := cpumanager.AlignmentError(""); errors.As(err, &odd) {
		return &rejection{"SMTAlignmentError", err.Error()}
	}
	return unexpected(err)
}

func (k *Kubelet) allocateMemory(pod *corev1.Pod, c *corev1.Container, near topologymanager.Hint) *rejection {
	if !k.memory.Wants(pod) {
		return nil
	}
	k.metrics.managers.memoryPinnings.Inc()
	if err := k.memory.Allocate(pod, c, near); err != nil {
		k.metrics.managers.memoryPinningErrors.Inc()
		return unexpected(err)
	}
	return nil
}

func (k *Kubelet) wakeCPUs() {
	select {
	case k.cpuWake <- struct{}{}:
	default:
	}
}

// pinContainers keeps running containers on their CPUs: those that share what nobody has
// for himself have to make room.
func (k *Kubelet) pinContainers(ctx context.Context) {
	if k.cfg.Settings.CPUManagerPolicy != cpumanager.Static || !k.waitRuntime(ctx) {
		return
	}
	pinned := map[string]string{} // by container id
	for {
		k.pin(ctx, pinned)
		timer := time.NewTimer(k.cfg.Settings.CPUManagerReconcilePeriod.Duration)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.cpuWake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (k *Kubelet) pin(ctx context.Context, pinned map[string]string) {
	if active, ok := k.activePods(); ok {
		k.prune(active)
	}
	running := map[string]bool{}
	for _, w := range k.all() {
		s := w.shown.Load()
		if s.observed == nil {
			continue
		}
		for _, c := range s.observed.Running() {
			running[c.Id] = true
			want := k.cpus.For(w.uid, c.Name())
			if want == "" || pinned[c.Id] == want {
				continue
			}
			_, err := k.runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: c.Id, Linux: &cri.LinuxContainerResources{CpusetCpus: want}})
			if err != nil {
				if ctx.Err() == nil {
					slog.Warn("keep a container on its CPUs", "pod", podspec.Format(s.pod), "container", c.Name(), "cpus", want, "err", err)
				}
				continue
			}
			pinned[c.Id] = want
		}
	}
	for id := range pinned {
		if !running[id] {
			delete(pinned, id)
		}
	}
}
