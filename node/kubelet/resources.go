package kubelet

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"

	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/dump"
	resourcehelper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Bounds of the kernel's cpu controller.
const (
	minShares   = 2
	maxShares   = 262144
	quotaPeriod = 100000
	minQuota    = 1000
)

func sharesOf(milli int64) int64 {
	if milli == 0 {
		return minShares
	}
	return min(max(milli*1024/1000, minShares), maxShares)
}

func quotaOf(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*quotaPeriod/1000, minQuota)
}

// qosOf is the quality-of-service class of a pod.
func qosOf(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return computeQOS(pod)
}

func computeQOS(pod *corev1.Pod) corev1.PodQOSClass {
	counted := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	if r := pod.Spec.Resources; r != nil && (len(r.Limits) > 0 || len(r.Requests) > 0) {
		guaranteed, any := true, false
		for _, name := range counted {
			req, lim := r.Requests[name], r.Limits[name]
			any = any || !req.IsZero() || !lim.IsZero()
			guaranteed = guaranteed && !lim.IsZero() && req.Cmp(lim) == 0
		}
		switch {
		case !any:
			return corev1.PodQOSBestEffort
		case guaranteed:
			return corev1.PodQOSGuaranteed
		}
		return corev1.PodQOSBurstable
	}
	guaranteed, any := true, false
	eachContainer(pod, func(c *corev1.Container, kind containerKind) {
		if kind == ephemeralKind {
			return
		}
		for _, name := range counted {
			req, lim := c.Resources.Requests[name], c.Resources.Limits[name]
			any = any || !req.IsZero() || !lim.IsZero()
			if lim.IsZero() || (!req.IsZero() && req.Cmp(lim) != 0) {
				guaranteed = false
			}
		}
	})
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// podLimits are a pod's requests and limits; a limit counts only if every
// container has one.
func podLimits(pod *corev1.Pod) (requests, limits corev1.ResourceList) {
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

func podLevel(pod *corev1.Pod, name corev1.ResourceName) *resource.Quantity {
	if pod.Spec.Resources == nil {
		return &resource.Quantity{}
	}
	q := pod.Spec.Resources.Limits[name]
	return &q
}

// podResources are the limits of a pod's own cgroup.
func (k *Kubelet) podResources(pod *corev1.Pod) *cri.LinuxContainerResources {
	requests, limits := podLimits(pod)
	cpu, ok := requests[corev1.ResourceCPU]
	milli := cpu.MilliValue()
	cpuLimit := limits[corev1.ResourceCPU]
	if !ok {
		milli = cpuLimit.MilliValue()
	}
	mem := limits[corev1.ResourceMemory]
	return &cri.LinuxContainerResources{
		CpuShares:          sharesOf(milli),
		CpuQuota:           quotaOf(cpuLimit.MilliValue()),
		CpuPeriod:          quotaPeriod,
		MemoryLimitInBytes: mem.Value(),
	}
}

func overheadResources(pod *corev1.Pod) *cri.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return nil
	}
	cpu, mem := pod.Spec.Overhead[corev1.ResourceCPU], pod.Spec.Overhead[corev1.ResourceMemory]
	return &cri.LinuxContainerResources{
		CpuShares: sharesOf(cpu.MilliValue()), CpuQuota: quotaOf(cpu.MilliValue()), CpuPeriod: quotaPeriod,
		MemoryLimitInBytes: mem.Value(),
	}
}

// containerResources are the limits of one container.
func (k *Kubelet) containerResources(pod *corev1.Pod, c *corev1.Container) *cri.LinuxContainerResources {
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
	r := &cri.LinuxContainerResources{
		CpuShares:          sharesOf(milli),
		CpuQuota:           quotaOf(limit.MilliValue()),
		CpuPeriod:          quotaPeriod,
		MemoryLimitInBytes: mem.Value(),
		OomScoreAdj:        k.oomScore(pod, c),
		HugepageLimits:     hugepages(c),
	}
	if k.cgroups.V2() {
		// One process running out of memory ends the container, as on v1.
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return r
}

func hugepages(c *corev1.Container) (out []*cri.HugepageLimit) {
	for name, q := range c.Resources.Limits {
		if size, ok := hugepageSize(name); ok {
			out = append(out, &cri.HugepageLimit{PageSize: size, Limit: uint64(q.Value())})
		}
	}
	return out
}

// hugepageSize turns hugepages-2Mi into the kernel's 2MB.
func hugepageSize(name corev1.ResourceName) (string, bool) {
	const prefix = corev1.ResourceHugePagesPrefix
	if len(name) <= len(prefix) || string(name[:len(prefix)]) != prefix {
		return "", false
	}
	q, err := resource.ParseQuantity(string(name[len(prefix):]))
	if err != nil {
		return "", false
	}
	units := []string{"B", "KB", "MB", "GB", "TB"}
	v, i := q.Value(), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strconv.FormatInt(v, 10) + units[i], true
}

// oomScore says how gladly the kernel should end a container.
func (k *Kubelet) oomScore(pod *corev1.Pod, c *corev1.Container) int64 {
	score := oomScore(pod, c, k.machine.memory)
	return max(score, k.oomFloor)
}

func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= 2000000000 {
		return -997
	}
	switch qosOf(pod) {
	case corev1.PodQOSGuaranteed:
		return -997
	case corev1.PodQOSBestEffort:
		return 1000
	}
	mem := c.Resources.Requests[corev1.ResourceMemory]
	score := int64(1000)
	if capacity > 0 {
		score = 1000 - 1000*mem.Value()/capacity
	}
	return min(max(score, 3), 999)
}

// containerHash tells definitions apart by what may change in a running pod.
// It is the field's own hash, so that containers are adopted either way.
func containerHash(c *corev1.Container) string {
	b, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(b))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

func shortHash(b []byte) string {
	h := fnv.New128a()
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}
