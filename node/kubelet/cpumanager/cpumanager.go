// Package cpumanager gives containers of Guaranteed pods that ask for whole CPUs some for
// themselves, by upstream's policy static, and the others what is left. It reads the
// machine's CPUs and writes who has which into upstream's file.
package cpumanager

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"knarr/node/kubelet/cpumanager/state"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/topologymanager"
)

// The policies.
const (
	None   = "none"
	Static = "static"
)

// Options are those of the policy static.
type Options struct {
	// FullCores gives containers whole cores only.
	FullCores bool
	// AcrossNodes takes as many CPUs of each NUMA node if one is not enough.
	AcrossNodes bool
	// BySocket aligns to sockets in place of NUMA nodes.
	BySocket bool
	// AcrossCores takes CPUs of different cores.
	AcrossCores bool
	// Strict keeps the reserved CPUs from the other containers too.
	Strict bool
	// ByCache takes CPUs of as few caches as can be.
	ByCache bool
}

// optionGates are the feature gates of options that are not stable, and whether they are on
// unless somebody says otherwise.
var optionGates = map[string]struct {
	gate, all, level string
	on               bool
}{
	"align-by-socket":              {"CPUManagerPolicyAlphaOptions", "AllAlpha", "Alpha", false},
	"distribute-cpus-across-cores": {"CPUManagerPolicyAlphaOptions", "AllAlpha", "Alpha", false},
	"distribute-cpus-across-numa":  {"CPUManagerPolicyBetaOptions", "AllBeta", "Beta", true},
}

// available says of an option whether the feature gates let it be used.
func available(option string, gates map[string]bool) error {
	g, ok := optionGates[option]
	if !ok {
		return nil
	}
	on := g.on
	for _, gate := range []string{g.all, g.gate} {
		if is, given := gates[gate]; given {
			on = is
		}
	}
	if !on {
		return fmt.Errorf("CPU Manager Policy %s-level Options not enabled, but option %q provided; set %s in featureGates (--feature-gates)", g.level, option, g.gate)
	}
	return nil
}

// ParseOptions reads them as the kubelet's configuration has them, with its feature gates.
func ParseOptions(m map[string]string, gates map[string]bool) (o Options, err error) {
	fields := map[string]*bool{
		"full-pcpus-only": &o.FullCores, "distribute-cpus-across-numa": &o.AcrossNodes, "align-by-socket": &o.BySocket,
		"distribute-cpus-across-cores": &o.AcrossCores, "strict-cpu-reservation": &o.Strict, "prefer-align-cpus-by-uncorecache": &o.ByCache,
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		field := fields[name]
		if field == nil {
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		}
		if err := available(name, gates); err != nil {
			return o, err
		}
		if *field, err = strconv.ParseBool(m[name]); err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
	}
	for _, pair := range [][2]string{
		{"full-pcpus-only", "distribute-cpus-across-cores"}, {"distribute-cpus-across-numa", "distribute-cpus-across-cores"},
		{"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"}, {"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"},
	} {
		if *fields[pair[0]] && *fields[pair[1]] {
			return o, fmt.Errorf("static policy options %s and %s can not be used at the same time", pair[0], pair[1])
		}
	}
	return o, nil
}

// Config is what a Manager works with.
type Config struct {
	// Dir is the kubelet's root directory.
	Dir string
	// Policy is none or static, Options are of it.
	Policy  string
	Options Options
	// Topology is the machine's.
	Topology Topology
	// Reserved is how many CPUs are kept from containers that want some for themselves,
	// ReservedSet which ones; none: those that are picked.
	Reserved    int
	ReservedSet cpuset.CPUSet
	// SingleNode says that pods are aligned to single NUMA nodes.
	SingleNode bool
}

// A Manager knows which containers have which CPUs.
type Manager struct {
	c Config
	// reserved are the CPUs kept, cores those with all of their cores.
	reserved, cores cpuset.CPUSet

	mu     sync.Mutex
	shared cpuset.CPUSet
	all    map[types.UID]map[string]cpuset.CPUSet
}

// An AlignmentError is why a container cannot have whole cores.
type AlignmentError string

func (e AlignmentError) Error() string { return "SMT Alignment Error: " + string(e) }

// New reads what an earlier run has given away.
func New(c Config) (*Manager, error) {
	m := newManager(c)
	have, ok, err := state.Read(m.path())
	if err != nil {
		return nil, m.notRestored(err)
	}
	if err := m.check(have, ok); err != nil || c.Policy != Static {
		return m, err
	}
	if err := m.restore(have, ok); err != nil {
		return nil, fmt.Errorf("start cpu manager error: %w: invalid state, please drain node and remove policy state file %s", err, m.path())
	}
	return m, m.save()
}

// Check says what New would refuse of a configuration, and writes nothing. Which CPUs an
// earlier run has given away is not looked at: that is no mistake of the configuration's.
func Check(c Config) error {
	m := newManager(c)
	have, ok, err := state.Read(m.path())
	return m.check(have, ok && err == nil)
}

func newManager(c Config) *Manager {
	return &Manager{c: c, all: map[types.UID]map[string]cpuset.CPUSet{}, shared: c.Topology.all()}
}

func (m *Manager) path() string { return filepath.Join(m.c.Dir, state.Name) }

func (m *Manager) notRestored(err error) error {
	return fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet", err, m.path())
}

// check says what is wrong with the configuration on this machine, beside a checkpoint of
// which it only needs the policy, and finds the CPUs that are kept.
func (m *Manager) check(have state.CPUManagerCheckpoint, ok bool) error {
	c := m.c
	if ok && have.PolicyName != c.Policy {
		return m.notRestored(fmt.Errorf("configured policy %q differs from state checkpoint policy %q", c.Policy, have.PolicyName))
	}
	if c.Policy != Static {
		return nil
	}
	if c.Reserved == 0 && c.ReservedSet.IsEmpty() {
		return errors.New("[cpumanager] unable to determine reserved CPU resources for static policy; set reservedSystemCPUs (--reserved-cpus), or cpu in systemReserved (--system-reserved) or kubeReserved (--kube-reserved)")
	}
	if err := m.checkStatic(); err != nil {
		return fmt.Errorf("new static policy error: %w", err)
	}
	return nil
}

func (m *Manager) checkStatic() error {
	c := m.c
	if c.Options.BySocket {
		if c.SingleNode {
			return fmt.Errorf("Topolgy manager %s policy is incompatible with CPUManager %s policy option", topologymanager.SingleNode, "align-by-socket") //nolint:staticcheck // upstream's words
		}
		all := c.Topology.all()
		if len(c.Topology.groups(bySocket, all)) > len(c.Topology.groups(byNode, all)) {
			return fmt.Errorf("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA") //nolint:staticcheck // upstream's words
		}
	}
	if m.reserved = c.ReservedSet; m.reserved.IsEmpty() {
		m.reserved, _ = m.pick(c.Topology.all(), c.Reserved)
	}
	if m.reserved.IsEmpty() || m.reserved.Size() != max(c.Reserved, c.ReservedSet.Size()) || !m.reserved.IsSubsetOf(c.Topology.all()) {
		return fmt.Errorf("[cpumanager] unable to reserve the required amount of CPUs (size of %s did not equal %d); reserve fewer of this machine's %d", m.reserved, c.Reserved, len(c.Topology.CPUs))
	}
	m.cores = cpuset.New()
	for _, id := range c.Topology.groups(byCore, m.reserved) {
		m.cores = m.cores.Union(c.Topology.of(byCore, id))
	}
	return nil
}

// usable are the CPUs that are given away or shared.
func (m *Manager) usable() cpuset.CPUSet {
	if m.c.Options.Strict {
		return m.c.Topology.all().Difference(m.reserved)
	}
	return m.c.Topology.all()
}

// restore takes over a checkpoint that is sound.
func (m *Manager) restore(c state.CPUManagerCheckpoint, ok bool) error {
	if !ok || c.DefaultCPUSet == "" && len(c.Entries) == 0 {
		m.shared = m.usable()
		return nil
	}
	var err error
	if m.shared, err = cpuset.Parse(c.DefaultCPUSet); err != nil {
		return err
	}
	if m.shared.IsEmpty() {
		return fmt.Errorf("default cpuset cannot be empty")
	}
	known := m.shared
	for pod, containers := range c.Entries {
		for name, list := range containers {
			set, err := cpuset.Parse(list)
			if err != nil {
				return err
			}
			if !m.shared.Intersection(set).IsEmpty() {
				return fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", pod, name, set, m.shared)
			}
			known = known.Union(set)
			m.put(types.UID(pod), name, set)
		}
	}
	if in := m.reserved.Intersection(m.shared); m.c.Options.Strict && !in.IsEmpty() {
		return fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", in, m.shared)
	} else if !m.c.Options.Strict && !in.Equals(m.reserved) {
		return fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", m.reserved, m.shared)
	}
	if !known.Equals(m.usable()) {
		return fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", m.usable(), known)
	}
	return nil
}

func (m *Manager) put(pod types.UID, container string, set cpuset.CPUSet) {
	if m.all[pod] == nil {
		m.all[pod] = map[string]cpuset.CPUSet{}
	}
	m.all[pod][container] = set
}

// save writes the checkpoint; the lock is held, or nobody else knows m yet.
func (m *Manager) save() error {
	c := state.CPUManagerCheckpoint{PolicyName: m.c.Policy, DefaultCPUSet: m.shared.String(), Entries: map[string]map[string]string{}}
	for pod, containers := range m.all {
		c.Entries[string(pod)] = map[string]string{}
		for name, set := range containers {
			c.Entries[string(pod)][name] = set.String()
		}
	}
	if len(c.Entries) == 0 {
		c.Entries = nil
	}
	return state.Write(filepath.Join(m.c.Dir, state.Name), c)
}

// Wants is how many CPUs a container is to have for itself.
func (m *Manager) Wants(pod *corev1.Pod, c *corev1.Container) int {
	if m.c.Policy != Static || podspec.QOS(pod) != corev1.PodQOSGuaranteed || pod.Spec.Resources != nil {
		return 0
	}
	q := c.Resources.Requests[corev1.ResourceCPU]
	if q.Value()*1000 != q.MilliValue() {
		return 0
	}
	return int(q.Value())
}

func (m *Manager) pick(free cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	o, t := m.c.Options, m.c.Topology
	if o.AcrossNodes {
		group := 1
		if o.FullCores {
			group = t.perCore()
		}
		return t.distributed(free, n, group)
	}
	return t.packed(free, n, o.AcrossCores, o.ByCache)
}

// reusable are the CPUs of init containers which have ended when this one starts.
func (m *Manager) reusable(pod *corev1.Pod, c *corev1.Container) cpuset.CPUSet {
	out := cpuset.New()
	for i := range pod.Spec.InitContainers {
		o := &pod.Spec.InitContainers[i]
		if o.Name == c.Name {
			break
		}
		if !podspec.IsSidecar(o) {
			out = out.Union(m.all[pod.UID][o.Name])
		}
	}
	podspec.EachContainer(pod, func(o *corev1.Container, kind podspec.ContainerKind) {
		if kind != podspec.InitContainer || podspec.IsSidecar(o) {
			out = out.Difference(m.all[pod.UID][o.Name])
		}
	})
	return out
}

// Allocate gives a container its CPUs, of the right NUMA nodes first.
func (m *Manager) Allocate(pod *corev1.Pod, c *corev1.Container, near topologymanager.Nodes) error {
	n := m.Wants(pod, c)
	if n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.all[pod.UID][c.Name]; has {
		return nil
	}
	if per := m.c.Topology.perCore(); m.c.Options.FullCores {
		if n%per != 0 {
			return AlignmentError(fmt.Sprintf("requested %d cpus not multiple cpus per core = %d", n, per))
		}
		if free := m.shared.Difference(m.cores).Size(); n > free {
			return AlignmentError(fmt.Sprintf("not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", free, n, per))
		}
	}
	free := m.shared.Difference(m.reserved).Union(m.reusable(pod, c))
	got := cpuset.New()
	if near != 0 {
		aligned := free.Intersection(m.aligned(near))
		var err error
		if got, err = m.pick(aligned, min(n, aligned.Size())); err != nil {
			return err
		}
	}
	rest, err := m.pick(free.Difference(got), n-got.Size())
	if err != nil {
		return err
	}
	got = got.Union(rest)
	m.put(pod.UID, c.Name, got)
	m.shared = m.shared.Difference(got)
	return m.save()
}

// aligned are the CPUs near some NUMA nodes.
func (m *Manager) aligned(near topologymanager.Nodes) cpuset.CPUSet {
	t := m.c.Topology
	on := t.onNodes(near)
	if !m.c.Options.BySocket {
		return on
	}
	out := cpuset.New()
	for _, id := range t.groups(bySocket, on) {
		out = out.Union(t.of(bySocket, id))
	}
	return out
}

// Hints are the NUMA nodes a container's CPUs could be of.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container) topologymanager.Hints {
	n := m.Wants(pod, c)
	if n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if has, ok := m.all[pod.UID][c.Name]; ok {
		return m.hints(has, cpuset.New(), n)
	}
	return m.hints(m.shared.Difference(m.reserved), m.reusable(pod, c), n)
}

func (m *Manager) hints(free, reuse cpuset.CPUSet, n int) topologymanager.Hints {
	t := m.c.Topology
	out := topologymanager.Hints{}
	sets := topologymanager.Sets(topologymanager.NodesOf(t.Nodes()...))
	least := len(t.Nodes())
	for _, s := range sets {
		if on := t.onNodes(s); on.Size() >= n {
			least = min(least, s.Count())
		}
	}
	for _, s := range sets {
		on := t.onNodes(s)
		if !reuse.IsSubsetOf(on) || on.Intersection(free).Union(reuse).Size() < n {
			continue
		}
		preferred := s.Count() == least
		if m.c.Options.BySocket && !preferred {
			// As many sockets as would do for as many nodes.
			preferred = len(t.groups(bySocket, on)) == 1 && least <= s.Count()
		}
		out = append(out, topologymanager.Hint{Nodes: s, Preferred: preferred})
	}
	return out
}

// Prune takes their CPUs from pods that have ended.
func (m *Manager) Prune(active map[types.UID]bool) error {
	return m.free(func(pod types.UID) bool { return !active[pod] })
}

// Forget takes its CPUs from a pod.
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
		if !of(uid) {
			continue
		}
		for _, set := range containers {
			m.shared = m.shared.Union(set)
		}
		delete(m.all, uid)
		changed = true
	}
	if !changed {
		return nil
	}
	return m.save()
}

// Exclusive are the CPUs that a container has for itself.
func (m *Manager) Exclusive(pod types.UID, container string) cpuset.CPUSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[pod][container]
}

// For are the CPUs that a container runs on; "" for all.
func (m *Manager) For(pod types.UID, container string) string {
	if m.c.Policy != Static {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if set, ok := m.all[pod][container]; ok {
		return set.String()
	}
	return m.shared.String()
}

// Use is how many CPUs are given away.
type Use struct {
	// Free are neither given away nor reserved.
	Free, Exclusive int
	// ByNode are the exclusive ones by NUMA node, nodes without any included.
	ByNode map[int]int
}

// Use counts the CPUs; with the policy none there is nothing to count.
func (m *Manager) Use() Use {
	if m.c.Policy != Static {
		return Use{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	given := cpuset.New()
	for _, containers := range m.all {
		for _, set := range containers {
			given = given.Union(set)
		}
	}
	u := Use{Free: m.shared.Difference(m.reserved).Size(), Exclusive: given.Size(), ByNode: map[int]int{}}
	t := m.c.Topology
	for _, n := range t.Nodes() {
		u.ByNode[n] = given.Intersection(t.of(byNode, n)).Size()
	}
	return u
}

// OneCache says whether all CPUs that a container has for itself share a cache.
func (m *Manager) OneCache(pod types.UID, container string) bool {
	set := m.Exclusive(pod, container)
	return !set.IsEmpty() && len(m.c.Topology.groups(byCache, set)) == 1
}

// FullCores says whether containers are given whole cores only.
func (m *Manager) FullCores() bool { return m.c.Options.FullCores }

// Allocatable are the CPUs that containers can have for themselves.
func (m *Manager) Allocatable() cpuset.CPUSet {
	if m.c.Policy != Static {
		return cpuset.New()
	}
	return m.c.Topology.all().Difference(m.reserved)
}

// PodHints are the NUMA nodes that the CPUs of all containers of a pod could be of.
func (m *Manager) PodHints(pod *corev1.Pod) topologymanager.Hints {
	var total, init, sidecars int
	has := cpuset.New()
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		n := m.Wants(pod, c)
		has = has.Union(m.Exclusive(pod.UID, c.Name))
		switch {
		case kind == podspec.InitContainer && podspec.IsSidecar(c):
			sidecars += n
		case kind == podspec.InitContainer:
			init = max(init, sidecars+n)
		default:
			total += n
		}
	})
	total = max(total+sidecars, init)
	if total == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !has.IsEmpty() {
		return m.hints(has, cpuset.New(), has.Size())
	}
	return m.hints(m.shared.Difference(m.reserved), cpuset.New(), total)
}
