package podstatus

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/runtimestate"
)

// actualResources are the resources a container has, which during a resize are not yet
// those of its spec.
func actualResources(spec *corev1.ResourceRequirements, c *runtimestate.Container, old *corev1.ContainerStatus) *corev1.ResourceRequirements {
	is := c.Resources.GetLinux()
	if is == nil || !c.Running() {
		return spec
	}
	out := spec.DeepCopy()
	if q, ok := out.Limits[corev1.ResourceMemory]; ok && is.MemoryLimitInBytes > 0 && q.Value() != is.MemoryLimitInBytes {
		out.Limits[corev1.ResourceMemory] = *resource.NewQuantity(is.MemoryLimitInBytes, resource.BinarySI)
		if old != nil && old.Resources != nil { // requests change with the limit
			if m, ok := old.Resources.Requests[corev1.ResourceMemory]; ok && out.Requests != nil {
				out.Requests[corev1.ResourceMemory] = m
			}
		}
	}
	if q, ok := out.Limits[corev1.ResourceCPU]; ok && is.CpuPeriod > 0 && is.CpuQuota > 0 && criconfig.CPUDiffers(is.CpuQuota, criconfig.CPUQuota(q.MilliValue(), is.CpuPeriod), criconfig.MinCPUQuota) {
		out.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(is.CpuQuota*1000/is.CpuPeriod, resource.DecimalSI)
	}
	if q, ok := out.Requests[corev1.ResourceCPU]; ok && is.CpuShares > 0 && criconfig.CPUDiffers(is.CpuShares, criconfig.CPUShares(q.MilliValue()), criconfig.MinCPUShares) {
		out.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(is.CpuShares*1000/1024, resource.DecimalSI)
	}
	return out
}
