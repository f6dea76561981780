package kubelet

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/criconfig"
)

func (k *Kubelet) ensurePodCgroup(pod *corev1.Pod, limits cgroup.Limits) error {
	group := k.podCgroup(pod)
	if group == "" {
		return nil
	}
	began := time.Now()
	defer func() { k.metrics.cgroupTook.WithLabelValues("create").Observe(time.Since(began).Seconds()) }()
	if err := k.cgroups.Ensure(group, limits); err != nil {
		return err
	}
	pages := criconfig.HugepageLimits(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
	return k.cgroups.LimitHugepages(group, func(size string) int64 { return pages[size] })
}

// podLimits are the limits of the pod's own group.
func (k *Kubelet) podLimits(pod *corev1.Pod) cgroup.Limits {
	n := k.nodeConfig()
	r := n.PodResources(pod)
	l := cgroup.Limits{
		CPUShares: r.CpuShares, CPUQuota: r.CpuQuota, CPUPeriod: r.CpuPeriod, Memory: r.MemoryLimitInBytes, Pids: k.podPids(),
	}
	l.MemoryMin, l.MemoryLow = n.ReservedMemory(pod)
	return l
}

// mostMemory is what a pod can have of memory at most, in bytes: its limit, if that is less
// than what the node has for pods.
func (k *Kubelet) mostMemory(pod *corev1.Pod) int64 {
	all := k.allocatable()[corev1.ResourceMemory]
	if limit := k.nodeConfig().PodResources(pod).MemoryLimitInBytes; limit > 0 {
		return min(limit, all.Value())
	}
	return all.Value()
}

// removePodCgroup removes the pod's group wherever it is: the class of a pod
// that is only known from the runtime is not.
func (k *Kubelet) removePodCgroup(pod *corev1.Pod) error {
	if k.podCgroup(pod) == "" {
		return nil
	}
	began := time.Now()
	defer func() { k.metrics.cgroupTook.WithLabelValues("destroy").Observe(time.Since(began).Seconds()) }()
	var errs []error
	parent := k.cgroupParent()
	for _, class := range []string{parent, cgroup.Child(parent, "burstable"), cgroup.Child(parent, "besteffort")} {
		group := cgroup.Child(class, "pod"+string(pod.UID))
		if err := k.cgroups.Remove(group); err != nil {
			// A process that the runtime does not know of keeps the group busy;
			// the next try finds it gone.
			errs = append(errs, err, k.cgroups.Kill(group))
		}
	}
	return errors.Join(errs...)
}
