package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cgroup"
)

// A resizing is a running container whose limits are not those of its spec.
type resizing struct {
	spec    *corev1.Container
	current *container
	want    *cri.LinuxContainerResources
	restart bool
}

// resizes compares running containers with their spec. What the runtime was
// asked for already, by container id, is not asked for again.
func resizes(pod *corev1.Pod, v *view, asked map[string]*cri.LinuxContainerResources, want func(*corev1.Container) *cri.LinuxContainerResources) (out []resizing) {
	eachContainer(pod, func(c *corev1.Container, kind containerKind) {
		cur := v.latest(c.Name)
		if kind == ephemeralKind || cur == nil || !cur.running() {
			return
		}
		is := cur.Resources.GetLinux()
		if is == nil {
			return // the runtime does not tell
		}
		w := want(c)
		if proto.Equal(w, asked[cur.Id]) {
			return // runtimes do not all report what they were asked for
		}
		cpu := differs(is.CpuShares, w.CpuShares, minShares) || differs(is.CpuQuota, w.CpuQuota, 0)
		mem := is.MemoryLimitInBytes != w.MemoryLimitInBytes && w.MemoryLimitInBytes > 0
		if !cpu && !mem {
			return
		}
		r := resizing{spec: c, current: cur, want: w}
		for _, p := range c.ResizePolicy {
			if p.RestartPolicy == corev1.RestartContainer && (p.ResourceName == corev1.ResourceCPU && cpu || p.ResourceName == corev1.ResourceMemory && mem) {
				r.restart = true
			}
		}
		out = append(out, r)
	})
	return out
}

// differs compares values of the cpu controller, of which none and the least
// are alike.
func differs(is, want, least int64) bool { return is != want && (is > least || want > least) }

// resize brings the limits of running containers to what the spec says now.
func (w *worker) resize(ctx context.Context) {
	pod := w.pod
	if pod.Generation <= 1 || w.busy("resize:") || w.busy("start") {
		return // as created
	}
	maps.DeleteFunc(w.resized, func(id string, _ *cri.LinuxContainerResources) bool { return w.view.byID(id) == nil })
	all := resizes(pod, w.view, w.resized, func(c *corev1.Container) *cri.LinuxContainerResources { return w.k.containerResources(pod, c) })
	if len(all) == 0 {
		w.resizeCondition = nil
		return
	}
	if reason, msg := w.k.resizeFits(pod); reason != "" {
		w.resizeCondition = &corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: msg}
		return
	}
	w.resizeCondition = &corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}
	for _, r := range all {
		if r.restart {
			w.kill(ctx, r.current, fmt.Sprintf("Container %s resize requires restart", r.spec.Name), nil)
		}
	}
	w.begin(ctx, "resize:", func(ctx context.Context) func() {
		err := w.k.applyResizes(ctx, pod, all)
		return func() {
			for _, r := range all {
				w.viewer.forget(r.current.Id)
				if err == nil && !r.restart {
					w.resized[r.current.Id] = r.want
				}
			}
			w.stale.Store(true)
			if err != nil && ctx.Err() == nil {
				slog.Warn("resize pod", "pod", podRef(pod), "err", err)
				w.resizeCondition = &corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: "Error", Message: err.Error()}
			}
		}
	})
}

// resizeFits says why a resized pod does not fit on the node, if so.
func (k *Kubelet) resizeFits(pod *corev1.Pod) (reason, message string) {
	node := k.node.Load()
	if node == nil {
		return "", ""
	}
	if r := admitResources(pod, nil, node); r != nil {
		return corev1.PodReasonInfeasible, r.message
	}
	var others []*corev1.Pod
	for _, w := range k.all() {
		if s := w.shown.Load(); w.uid != pod.UID && !s.ended && s.status.Phase != corev1.PodFailed && s.status.Phase != corev1.PodSucceeded {
			others = append(others, s.pod)
		}
	}
	if r := admitResources(pod, others, node); r != nil {
		return corev1.PodReasonDeferred, r.message
	}
	return "", ""
}

// applyResizes widens the pod's group first and narrows it last, so that a
// container never has more than its pod.
func (k *Kubelet) applyResizes(ctx context.Context, pod *corev1.Pod, all []resizing) error {
	r := k.podResources(pod)
	limits := cgroup.Limits{CPUShares: r.CpuShares, CPUQuota: r.CpuQuota, CPUPeriod: r.CpuPeriod, Memory: r.MemoryLimitInBytes}
	group := k.podCgroup(pod)
	var before error
	if group != "" {
		before = k.cgroups.Ensure(group, limits)
	}
	for _, x := range all {
		if x.restart {
			continue
		}
		if _, err := k.runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: x.current.Id, Linux: x.want}); err != nil {
			return fmt.Errorf("container %s: %w", x.spec.Name, err)
		}
	}
	if before != nil {
		return k.cgroups.Ensure(group, limits)
	}
	return nil
}
