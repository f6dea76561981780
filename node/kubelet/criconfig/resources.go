package criconfig

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// Bounds of the kernel's cpu controller.
const (
	MinCPUShares = 2
	maxCPUShares = 262144
	// CPUPeriod is the period of quotas in microseconds, unless a node has another.
	CPUPeriod   = 100000
	MinCPUQuota = 1000
)

// CPUShares are the shares of the cpu controller for a request in millicores.
func CPUShares(milli int64) int64 {
	if milli == 0 {
		return MinCPUShares
	}
	return min(max(milli*1024/1000, MinCPUShares), maxCPUShares)
}

// CPUQuota is the quota of the cpu controller for a limit in millicores; 0: none.
func CPUQuota(milli, period int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, MinCPUQuota)
}

// noCPUQuota is the quota of what may use its CPUs all of the time.
const noCPUQuota = -1

// cpu sets the shares and the quota of r; unlimited is what has CPUs for itself, which a
// quota would only keep from using them.
func (n Node) cpu(r *cri.LinuxContainerResources, request, limit int64, unlimited bool) *cri.LinuxContainerResources {
	r.CpuShares, r.CpuPeriod = CPUShares(request), n.CPUPeriod
	if r.CpuPeriod == 0 {
		r.CpuPeriod = CPUPeriod
	}
	switch {
	case n.NoCPUQuota:
	case unlimited:
		r.CpuQuota = noCPUQuota
	default:
		r.CpuQuota = CPUQuota(limit, r.CpuPeriod)
	}
	return r
}

// exclusive says whether a container has CPUs for itself and so no quota.
func (n Node) exclusive(pod *corev1.Pod, container string) bool {
	return n.ExclusiveCPUs != nil && n.ExclusiveCPUs(pod.UID, container)
}

// anyExclusive says whether one of a pod's containers has: their group can limit none then.
func (n Node) anyExclusive(pod *corev1.Pod) (any bool) {
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		any = any || kind != podspec.EphemeralContainer && n.exclusive(pod, c.Name)
	})
	return any
}

// PodLimits are a pod's requests and the limits of its cgroup; one of containers counts
// only if every container has it.
func PodLimits(pod *corev1.Pod) (requests, limits corev1.ResourceList) {
	limited := map[corev1.ResourceName]bool{corev1.ResourceCPU: true, corev1.ResourceMemory: true}
	opts := resourcehelper.PodResourcesOptions{ContainerFn: func(res corev1.ResourceList, kind resourcehelper.ContainerType) {}}
	requests = resourcehelper.PodRequests(pod, opts)
	limits = resourcehelper.PodLimits(pod, opts)
	for name := range limited {
		for i := range pod.Spec.Containers {
			if q := pod.Spec.Containers[i].Resources.Limits[name]; q.IsZero() && podLevel(pod, name).IsZero() {
				delete(limits, name)
			}
		}
		for i := range pod.Spec.InitContainers {
			if q := pod.Spec.InitContainers[i].Resources.Limits[name]; q.IsZero() && podLevel(pod, name).IsZero() {
				delete(limits, name)
			}
		}
	}
	return requests, limits
}

// podLevel is the limit that all containers of the pod share, zero if there is none.
func podLevel(pod *corev1.Pod, name corev1.ResourceName) *resource.Quantity {
	if pod.Spec.Resources == nil {
		return &resource.Quantity{}
	}
	q := pod.Spec.Resources.Limits[name]
	return &q
}

// PodResources are the limits of a pod's own cgroup.
func (n Node) PodResources(pod *corev1.Pod) *cri.LinuxContainerResources {
	requests, limits := PodLimits(pod)
	cpu, ok := requests[corev1.ResourceCPU]
	milli := cpu.MilliValue()
	cpuLimit := limits[corev1.ResourceCPU]
	if !ok {
		milli = cpuLimit.MilliValue()
	}
	mem := limits[corev1.ResourceMemory]
	return n.cpu(&cri.LinuxContainerResources{MemoryLimitInBytes: mem.Value()}, milli, cpuLimit.MilliValue(), n.anyExclusive(pod))
}

// sandboxResources are what the containers of a pod have together, its overhead apart: a
// runtime that makes a machine for the pod makes it so large.
func (n Node) sandboxResources(pod *corev1.Pod) *cri.LinuxContainerResources {
	apart := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := resourcehelper.PodRequests(pod, apart), resourcehelper.PodLimits(pod, apart)
	milli := limits.Cpu().MilliValue()
	if cpu, ok := requests[corev1.ResourceCPU]; ok {
		milli = cpu.MilliValue()
	}
	return n.cpu(&cri.LinuxContainerResources{MemoryLimitInBytes: limits.Memory().Value()}, milli, limits.Cpu().MilliValue(), n.anyExclusive(pod))
}

// SandboxResources are a pod's overhead, nil if it has none, and what its containers have
// together.
func (n Node) SandboxResources(pod *corev1.Pod) (overhead, resources *cri.LinuxContainerResources) {
	return n.overheadResources(pod), n.sandboxResources(pod)
}

func (n Node) overheadResources(pod *corev1.Pod) *cri.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return nil
	}
	cpu, mem := pod.Spec.Overhead[corev1.ResourceCPU], pod.Spec.Overhead[corev1.ResourceMemory]
	return n.cpu(&cri.LinuxContainerResources{MemoryLimitInBytes: mem.Value()}, cpu.MilliValue(), cpu.MilliValue(), false)
}

// ContainerResources are the limits of one container.
func (n Node) ContainerResources(pod *corev1.Pod, c *corev1.Container) *cri.LinuxContainerResources {
	cpu, ok := c.Resources.Requests[corev1.ResourceCPU]
	limit := c.Resources.Limits[corev1.ResourceCPU]
	mem := c.Resources.Limits[corev1.ResourceMemory]
	if limit.IsZero() {
		limit = *podLevel(pod, corev1.ResourceCPU)
	}
	if mem.IsZero() {
		mem = *podLevel(pod, corev1.ResourceMemory)
	}
	milli := cpu.MilliValue()
	if !ok && !limit.IsZero() {
		milli = limit.MilliValue()
	}
	r := n.cpu(&cri.LinuxContainerResources{
		MemoryLimitInBytes: mem.Value(),
		OomScoreAdj:        max(oomScore(pod, c, n.Memory), n.OOMScoreFloor),
		HugepageLimits:     n.hugepages(pod, c),
	}, milli, limit.MilliValue(), n.exclusive(pod, c.Name))
	n.unified(r, pod, c)
	return r
}

// CPUDiffers says whether two values of the cpu controller differ; no value and
// the least one are alike.
func CPUDiffers(is, want, least int64) bool { return is != want && (is > least || want > least) }
