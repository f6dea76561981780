package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/nodeallocatable"
)

const (
	// classPeriod is how often the weights of classes are looked at although no pod came
	// or went, and how often limits that could not be set are tried again.
	classPeriod = time.Minute
	// classSettle gathers pods that come together.
	classSettle = 100 * time.Millisecond
)

// nodeAllocatable is what the limits of the node's groups are decided by.
func (k *Kubelet) nodeAllocatable() nodeallocatable.Config {
	c := nodeallocatable.Config{Parent: k.cgroupParent(), Settings: k.cfg.Settings, Capacity: k.capacity()}
	maps.Copy(c.Capacity, pidCapacity())
	return c
}

// pidCapacity is how many processes the machine can have, if it says so.
func pidCapacity() corev1.ResourceList {
	r := rlimit(readTrim("/proc/sys/kernel/pid_max"), readTrim("/proc/sys/kernel/threads-max"), "", metav1.Now())
	if r.MaxPID == nil {
		return nil
	}
	return corev1.ResourceList{nodeallocatable.PIDs: *resource.NewQuantity(*r.MaxPID, resource.DecimalSI)}
}

// absolute is what is left of a resource for pods, thresholds of eviction apart.
func (k *Kubelet) absolute(name corev1.ResourceName) int64 {
	q := k.nodeAllocatable().Absolute()[name]
	return q.Value()
}

// hardReserved is what hard thresholds keep from pods.
func (k *Kubelet) hardReserved(capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	all, _ := eviction.Parse(k.cfg.Settings.EvictionHard, nil, nil, nil, false) // checked by New
	for _, t := range all {
		name := map[string]corev1.ResourceName{eviction.MemoryAvailable: corev1.ResourceMemory, eviction.NodeFsAvailable: corev1.ResourceEphemeralStorage}[t.Signal]
		if have, ok := capacity[name]; ok {
			out[name] = *resource.NewQuantity(t.Value.Of(have.Value()), resource.BinarySI)
		}
	}
	return out
}

// limitGroups sets the limits of the groups of all pods and of what is reserved, and
// keeps the weights of classes as their pods want them.
func (k *Kubelet) limitGroups(ctx context.Context) {
	if k.cfg.CgroupParent == "-" || !k.driven.wait(ctx) {
		return
	}
	todo := k.nodeAllocatable().Groups()
	written := map[string]cgroup.Limits{}
	for {
		todo = k.limit(todo)
		k.weighClasses(written)
		timer := time.NewTimer(classPeriod)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.classWake:
			if !sleep(ctx, classSettle) {
				timer.Stop()
				return
			}
		case <-timer.C:
			clear(written) // somebody else may have changed them
		}
		timer.Stop()
	}
}

// limit sets limits, and returns those that could not be set. A group that is not there
// is tried again: whoever makes it may come later.
func (k *Kubelet) limit(groups []nodeallocatable.Group) (failed []nodeallocatable.Group) {
	for _, g := range groups {
		err := errNoGroup
		if !g.Existing || k.cgroups.Exists(g.Path) {
			err = k.cgroups.Ensure(g.Path, g.Limits)
		}
		if err == nil && g.Hugepages != nil {
			err = k.cgroups.LimitHugepages(g.Path, func(size string) int64 { return g.Hugepages[size] })
		}
		if err != nil {
			k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", g.Failed+err.Error())
			failed = append(failed, g)
			continue
		}
		k.events.Event(k.nodeRef(), corev1.EventTypeNormal, "NodeAllocatableEnforced", g.Done)
	}
	return failed
}

// errNoGroup is why limits are not set on a group that others have to make.
var errNoGroup = errors.New("the cgroup does not exist")

// weighClasses sets the weights of the classes, and the memory that is kept for them, that
// are not as written.
func (k *Kubelet) weighClasses(written map[string]cgroup.Limits) {
	active, _ := k.activePods()
	var pods []*corev1.Pod
	for _, w := range k.all() {
		if active == nil || active[w.uid] {
			pods = append(pods, w.shown.Load().pod)
		}
	}
	c := nodeallocatable.Config{Parent: k.cgroupParent(), Settings: k.cfg.Settings}
	kept := c.KeptMemory(pods)
	k.metrics.memoryMin.Set(float64(kept.Guaranteed))
	k.metrics.memoryLow.Set(float64(kept.Burstable))
	for _, g := range c.Classes(pods) {
		if written[g.Path] == g.Limits {
			continue
		}
		err := k.cgroups.Ensure(g.Path, g.Limits)
		if err == nil && g.Path != c.Parent {
			err = k.cgroups.LimitHugepages(g.Path, func(string) int64 { return cgroup.UnlimitedHugepages })
		}
		if err != nil {
			slog.Warn("weigh a class of pods", "cgroup", g.Path, "shares", strconv.FormatInt(g.Limits.CPUShares, 10), "err", err)
			continue
		}
		written[g.Path] = g.Limits
	}
}

// wakeClasses lets the weights of classes follow the pods.
func (k *Kubelet) wakeClasses() {
	select {
	case k.classWake <- struct{}{}:
	default:
	}
}
