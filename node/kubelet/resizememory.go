package kubelet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/podspec"
)

// roomToShrink says which memory limits a resize would set below what is used, if
// any. The kernel refuses these with version 1 of control groups, when others are
// set already, and kills for them with version 2.
func (k *Kubelet) roomToShrink(ctx context.Context, pod *corev1.Pod, limits cgroup.Limits, all []resizing) error {
	var errs []error
	if is, ok := k.podMemory(pod); ok && limits.Memory > 0 {
		if want := uint64(limits.Memory); want < is.Limit && want <= is.Usage {
			errs = append(errs, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", want, is.Usage))
		}
	}
	for _, r := range all {
		is, want := r.current.Resources.GetLinux().GetMemoryLimitInBytes(), r.want.MemoryLimitInBytes
		if r.restart || want <= 0 || is > 0 && is <= want {
			continue
		}
		res, err := k.runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: r.current.Id})
		if err != nil {
			return fmt.Errorf("unable to read memory usage for pod %q: %w", podspec.Format(pod), err)
		}
		used := res.GetStats().GetMemory().GetUsageBytes()
		switch {
		case used == nil:
			errs = append(errs, fmt.Errorf("missing container %q memory usage", r.spec.Name))
		case used.Value >= uint64(want):
			errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", r.spec.Name, want, used.Value))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: %w", utilerrors.NewAggregate(errs))
}

// podMemory is what the kernel says of the memory of the pod's group.
func (k *Kubelet) podMemory(pod *corev1.Pod) (cgroup.MemoryStats, bool) {
	group := k.podCgroup(pod)
	if group == "" {
		return cgroup.MemoryStats{}, false
	}
	s, ok := k.cgroups.NewReader().Stats(group)
	return s.Memory, ok && s.Memory.Known
}
