// Package nodeallocatable decides what is left of a node for pods, and which limits and
// weights the groups of pods, of their classes, and of the reserved parts get. It reads
// nothing and writes nothing.
package nodeallocatable

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/internal/features"
	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podspec"
)

// PIDs is the name of the number of processes among resources.
const PIDs corev1.ResourceName = "pid"

// Config is what is decided by.
type Config struct {
	// Parent is the group of all pods. If it is a slice, so are those of what is reserved.
	Parent string
	// Capacity is what the node has, with PIDs.
	Capacity corev1.ResourceList
	Settings *configuration.Settings
}

// Absolute is what is left of the capacity after reservations, thresholds of eviction
// apart.
func (c Config) Absolute() corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range c.Capacity {
		q = q.DeepCopy()
		for _, of := range []map[string]string{c.Settings.SystemReserved, c.Settings.KubeReserved} {
			q.Sub(configuration.Reserved(of)[name])
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		out[name] = q
	}
	return out
}

// Check says which resources have more reserved than the node has. Thresholds are those
// of hard evictions, which count as reserved.
func (c Config) Check(thresholds corev1.ResourceList) error {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(c.Capacity)) {
		have, sum := c.Capacity[name], resource.NewQuantity(0, resource.DecimalSI)
		for _, of := range []map[string]string{c.Settings.SystemReserved, c.Settings.KubeReserved} {
			sum.Add(configuration.Reserved(of)[name])
		}
		sum.Add(thresholds[name])
		if have.Cmp(*sum) < 0 {
			wrong = append(wrong, fmt.Sprintf("Resource %q has a reservation of %v but capacity of %v. Expected capacity >= reservation.", name, sum, have.String()))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("invalid Node Allocatable configuration. %s", strings.Join(wrong, " "))
	}
	return nil
}

// A pod that forks without end would take the process numbers of the whole machine, so that
// neither this program nor an administrator's shell could start anything. Upstream bounds
// neither it nor all pods unless it is asked to.
const (
	// keptPIDs is which part of the node's is kept from pods where nothing of them is reserved.
	keptPIDs = 10
	// podPIDs is which part of what all pods have one of them may have,
	podPIDs = 4
	// leastPodPIDs so many at least.
	leastPodPIDs = 1024
)

// pids is how many processes all pods may have.
func (c Config) pids() int64 {
	have, left := c.Capacity[PIDs], c.Absolute()[PIDs]
	if left.Cmp(have) == 0 {
		return have.Value() - have.Value()/keptPIDs
	}
	return left.Value()
}

// PodPIDs is how many processes one pod may have where no setting says it; -1, any number, if
// it is not known how many the node has.
func (c Config) PodPIDs() int64 {
	all := c.pids()
	if all <= 0 {
		return -1
	}
	return min(max(all/podPIDs, leastPodPIDs), all)
}

// A Group is a control group and its limits.
type Group struct {
	Path   string
	Limits cgroup.Limits
	// Hugepages are the bytes of each size that are not none; nil leaves them all alone.
	Hugepages map[string]int64
	// Existing says that it has to be there already.
	Existing bool
	// Done and Failed are what events say of it, Failed before the error.
	Done, Failed string
}

// Groups are those of all pods and of the reserved parts, as far as they are to be
// limited. The group of all pods gets the weight and the memory of the whole node if it
// is not: what a group gets by itself would starve pods.
func (c Config) Groups() []Group {
	s := c.Settings
	all := c.Capacity
	if slices.Contains(s.EnforceNodeAllocatable, configuration.PodsEnforcement) {
		all = c.Absolute()
		all[PIDs] = *resource.NewQuantity(c.pids(), resource.DecimalSI)
	}
	out := []Group{{
		Path: c.Parent, Limits: limits(all, false), Hugepages: criconfig.HugepageLimits(all),
		Done: "Updated Node Allocatable limit across pods", Failed: fmt.Sprintf("Failed to update Node Allocatable Limits %q: ", c.Parent),
	}}
	for _, e := range []struct {
		name, title, group string
		compressible       bool
		reserved           map[string]string
	}{
		{configuration.SystemReservedEnforcement, "System Reserved", s.SystemReservedCgroup, false, s.SystemReserved},
		{configuration.KubeReservedEnforcement, "Kube Reserved", s.KubeReservedCgroup, false, s.KubeReserved},
		{configuration.SystemReservedCompressible, "System Reserved Compressible", s.SystemReservedCgroup, true, s.SystemReserved},
		{configuration.KubeReservedCompressible, "Kube Reserved Compressible", s.KubeReservedCgroup, true, s.KubeReserved},
	} {
		if !slices.Contains(s.EnforceNodeAllocatable, e.name) {
			continue
		}
		kind := "system"
		if strings.HasPrefix(e.title, "Kube") {
			kind = "kube"
		}
		g := Group{
			Path: c.reserved(e.group), Limits: limits(configuration.Reserved(e.reserved), e.compressible), Existing: true,
			Done:   fmt.Sprintf("Updated limits on %s reserved cgroup %v", kind, e.group),
			Failed: fmt.Sprintf("Failed to enforce %s Cgroup Limits on %q: ", e.title, e.group),
		}
		if !e.compressible {
			g.Hugepages = criconfig.HugepageLimits(configuration.Reserved(e.reserved))
			if c.memoryQoS() {
				g.Limits.MemoryMin = g.Limits.Memory
			}
		}
		out = append(out, g)
	}
	return out
}

// reserved is the path of the group that a setting names.
func (c Config) reserved(setting string) string {
	if cgroup.IsSlice(c.Parent) {
		return cgroup.ReservedSlice(setting)
	}
	return setting
}

func limits(r corev1.ResourceList, compressible bool) (l cgroup.Limits) {
	if cpu, ok := r[corev1.ResourceCPU]; ok {
		l.CPUShares = criconfig.CPUShares(cpu.MilliValue())
	}
	if compressible {
		return l
	}
	memory, pids := r[corev1.ResourceMemory], r[PIDs]
	l.Memory, l.Pids = memory.Value(), pids.Value()
	return l
}

// Classes are the groups of the classes of pods: BestEffort has the least weight there
// is, Burstable that of all its pods' requests. With the feature MemoryQoS the kernel keeps
// memory for them, if that is the policy: what a group is to keep, those above it must keep
// too, so that the group of all pods is there as well.
func (c Config) Classes(pods []*corev1.Pod) []Group {
	m := c.KeptMemory(pods)
	var milli int64
	for _, p := range pods {
		if podspec.QOS(p) == corev1.PodQOSBurstable {
			requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
			milli += requests.Cpu().MilliValue()
		}
	}
	out := []Group{
		{Path: cgroup.Child(c.Parent, "burstable"), Limits: cgroup.Limits{CPUShares: criconfig.CPUShares(milli)}},
		{Path: cgroup.Child(c.Parent, "besteffort"), Limits: cgroup.Limits{CPUShares: criconfig.MinCPUShares}},
	}
	if c.memoryQoS() {
		out[0].Limits.MemoryLow = orNone(m.Burstable)
		out = append(out, Group{Path: c.Parent, Limits: cgroup.Limits{MemoryMin: orNone(m.Guaranteed + m.Burstable)}})
	}
	return out
}

// Kept is the memory that pods of a class ask for and the kernel is to keep for them.
type Kept struct{ Guaranteed, Burstable int64 }

// KeptMemory is what is kept; nothing, unless that is the policy.
func (c Config) KeptMemory(pods []*corev1.Pod) (m Kept) {
	if !c.memoryQoS() || c.Settings.MemoryReservationPolicy != configuration.TieredReservation {
		return m
	}
	for _, p := range pods {
		requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		switch podspec.QOS(p) {
		case corev1.PodQOSGuaranteed:
			m.Guaranteed += requests.Memory().Value()
		case corev1.PodQOSBurstable:
			m.Burstable += requests.Memory().Value()
		}
	}
	return m
}

func (c Config) memoryQoS() bool { return features.Set(c.Settings.FeatureGates).Enabled("MemoryQoS") }

// orNone is a protection as Limits has it, where none is to be taken away.
func orNone(bytes int64) int64 {
	if bytes == 0 {
		return -1
	}
	return bytes
}
