package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/cpumanager"
	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/memorymanager"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// A resizing is a running container whose limits are not those of its spec.
type resizing struct {
	spec    *corev1.Container
	current *runtimestate.Container
	want    *cri.LinuxContainerResources
	restart bool
}

// resizes compares running containers with their spec. What the runtime was
// asked for already, by container id, is not asked for again.
func resizes(pod *corev1.Pod, v *runtimestate.Pod, asked map[string]*cri.LinuxContainerResources, want func(*corev1.Container) *cri.LinuxContainerResources) (out []resizing) {
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		cur := v.Latest(c.Name)
		if kind == podspec.EphemeralContainer || cur == nil || !cur.Running() {
			return
		}
		is := cur.Resources.GetLinux()
		if is == nil {
			return // the runtime does not report it
		}
		w := want(c)
		// Runtimes do not all report what they were asked for.
		cpu, mem := false, false
		if a := asked[cur.Id]; a == nil || !proto.Equal(w, a) {
			cpu = criconfig.CPUDiffers(is.CpuShares, w.CpuShares, criconfig.MinCPUShares) || criconfig.CPUDiffers(is.CpuQuota, w.CpuQuota, 0)
			mem = is.MemoryLimitInBytes != w.MemoryLimitInBytes && w.MemoryLimitInBytes > 0
		}
		if had, known := cur.MemoryRequest(); known && had != c.Resources.Requests.Memory().Value() {
			mem = true
		}
		if !cpu && !mem {
			return
		}
		r := resizing{spec: c, current: cur, want: w}
		r.restart = cpu && podspec.RestartsOnResize(c, corev1.ResourceCPU) || mem && podspec.RestartsOnResize(c, corev1.ResourceMemory)
		out = append(out, r)
	})
	return out
}

// resize brings the limits of running containers to what the pod was given.
func (w *worker) resize(ctx context.Context) time.Duration {
	if w.desired.Generation <= 1 || w.anyBusy(opResize, opStart) {
		return never // as created
	}
	sandbox, _ := w.observed.ReadySandbox()
	pod := w.pod
	asked := map[string]*cri.LinuxContainerResources{}
	for id, i := range w.instances {
		asked[id] = i.resources
	}
	node := w.k.nodeConfig()
	all := resizes(pod, w.observed, asked, func(c *corev1.Container) *cri.LinuxContainerResources { return node.ContainerResources(pod, c) })
	limits := w.k.podLimits(pod)
	before := w.resizing
	if len(all) == 0 && limits == w.limits {
		w.resizing = nil
		if before != nil {
			w.resizeEvent(corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", "", pod, before.ObservedGeneration)
		}
		return never
	}
	if before == nil { // else what went wrong is shown until it goes well
		w.resizing = inProgress(pod.Generation)
	}
	key := opKey{kind: opResize}
	if left := w.retryIn(key); left > 0 {
		return left
	}
	for _, r := range all {
		if r.restart {
			w.kill(ctx, r.current, fmt.Sprintf("Container %s resize requires restart", r.spec.Name), nil)
		}
	}
	w.begin(ctx, key, func(ctx context.Context) func() {
		began := time.Now()
		err := w.k.applyResizes(ctx, pod, sandbox.Id, limits, all)
		if ctx.Err() == nil {
			w.k.metrics.resizes.done(time.Since(began), err)
		}
		return func() {
			for _, r := range all {
				w.reader.Forget(r.current.Id)
				if err == nil && !r.restart {
					w.instance(r.current.Id).resources = r.want
				}
			}
			w.stale.Store(true)
			if err == nil {
				w.limits = limits
				w.succeeded(key)
			} else if ctx.Err() == nil {
				w.retryLater(key, time.Second, time.Minute)
				generation := pod.Generation
				if w.resizing != nil {
					generation = w.resizing.ObservedGeneration
				}
				w.resizeEvent(corev1.EventTypeWarning, "ResizeError", "Pod resize error", err.Error(), pod, generation)
				w.resizing = inProgress(generation)
				w.resizing.Reason, w.resizing.Message = corev1.PodReasonError, err.Error()
			}
		}
	})
	return never
}

// inProgress is the condition of a resize to what a generation of the pod asks for.
func inProgress(generation int64) *corev1.PodCondition {
	return &corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, ObservedGeneration: generation}
}

// allocate gives the pod the resources it asks for, or says why it has to do
// with those it has. Nobody else is given any meanwhile.
func (w *worker) allocate() {
	w.resizePending = nil
	before := w.resizeDeferred.Load()
	if w.pod == w.desired {
		w.resizeDeferred.Store(nil)
		w.roomMade.Store(false)
		return
	}
	claim := &resizeClaim{pod: w.desired, since: time.Now()}
	if before != nil {
		claim.since = before.since
	}
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	removed := w.roomMade.Swap(false) // with the lock held: room is made and told of at once
	reason, message, detail := w.k.resizeFits(w.pod, claim)
	if reason != corev1.PodReasonDeferred {
		claim = nil
	}
	w.resizeDeferred.Store(claim) // with the lock held: whoever looks next sees the claim, or what it got
	if reason != "" {
		if reason == corev1.PodReasonInfeasible {
			w.infeasibleResize(detail)
		}
		w.resizeEvent(corev1.EventTypeWarning, "Resize"+reason, "Pod resize "+reason, message, w.desired, w.desired.Generation)
		w.resizePending = &corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message}
		return
	}
	if err := w.k.allocations.Set(w.desired); err != nil {
		slog.Warn("keep the resources of a pod", "pod", podspec.Format(w.pod), "err", err)
	}
	w.acceptedResize(before, removed)
	w.resizeEvent(corev1.EventTypeNormal, "ResizeStarted", "Pod resize started", "", w.desired, w.desired.Generation)
	w.resizing = inProgress(w.desired.Generation)
	w.succeeded(opKey{kind: opResize}) // what could not be done is no longer asked for
	w.pod = w.desired
	w.k.wakeClasses()
	shown := *w.shown.Load()
	shown.pod = w.pod
	w.shown.Store(&shown)
	if len(w.observed.Running()) == 0 {
		w.cgroup = false // the pod's group, too, before the next container begins
	}
}

// resizeEvent emits an event about a resize once, with the resources it is about.
func (w *worker) resizeEvent(kind, reason, what, wrong string, pod *corev1.Pod, generation int64) {
	w.eventAfter(stateEventAgain, "resize", kind, reason, what+": "+resizeSummary(pod, wrong, generation))
}

// resizeSummary is how events write down the resources of a pod, of that generation.
func resizeSummary(pod *corev1.Pod, wrong string, generation int64) string {
	type container struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var s struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}
	for i := range pod.Spec.InitContainers {
		s.InitContainers = append(s.InitContainers, container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		s.Containers = append(s.Containers, container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	s.Generation, s.Error = generation, wrong
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// makeRoom lets pods that wait for room look again; the lock is held.
func (k *Kubelet) makeRoom() {
	for _, w := range k.workers {
		if w.resizeDeferred.Load() != nil {
			w.roomMade.Store(true)
			w.poke()
		}
	}
}

// pruneAllocations forgets pods that went while the kubelet was away.
func (k *Kubelet) pruneAllocations(ctx context.Context) {
	if !k.synced.wait(ctx) || !k.static.wait(ctx) {
		return
	}
	for _, uid := range k.allocations.Pods() {
		if k.worker(uid) != nil {
			continue
		}
		if err := k.allocations.Remove(uid); err != nil {
			slog.Warn("forget the resources of a pod", "uid", uid, "err", err)
		}
	}
}

// pinnedResize says why a pod whose containers have CPUs or memory for themselves cannot be
// given others, if so, and what that is counted as.
func pinnedResize(s *configuration.Settings, is, want *corev1.Pod) (message, detail string) {
	if podspec.QOS(want) != corev1.PodQOSGuaranteed {
		return "", ""
	}
	changed := func(name corev1.ResourceName) (changed bool) {
		podspec.EachContainer(want, func(c *corev1.Container, kind podspec.ContainerKind) {
			if kind == podspec.EphemeralContainer || kind == podspec.InitContainer && !podspec.IsSidecar(c) {
				return
			}
			if has, _ := podspec.FindContainer(is, c.Name); has != nil {
				changed = changed || !c.Resources.Requests[name].Equal(has.Resources.Requests[name])
			}
		})
		return changed
	}
	switch {
	case s.CPUManagerPolicy == cpumanager.Static && changed(corev1.ResourceCPU):
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", cpumanager.Static), "guaranteed_pod_cpu_manager_static_policy"
	case s.MemoryManagerPolicy == memorymanager.Static && changed(corev1.ResourceMemory):
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", memorymanager.Static), "guaranteed_pod_memory_manager_static_policy"
	}
	return "", ""
}

// swappedResize says whether a container is asked to have other memory without a restart
// that has, or would have, swap by its request of memory: that would not follow. Pure.
func swappedResize(is, want *corev1.Pod, swaps func(*corev1.Pod, *corev1.Container) bool) (swapped bool) {
	podspec.EachContainer(want, func(c *corev1.Container, kind podspec.ContainerKind) {
		has, _ := podspec.FindContainer(is, c.Name)
		if kind == podspec.EphemeralContainer || has == nil || has.Resources.Requests.Memory().Equal(*c.Resources.Requests.Memory()) {
			return
		}
		restarts := slices.ContainsFunc(has.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
			return p.ResourceName == corev1.ResourceMemory && p.RestartPolicy == corev1.RestartContainer
		})
		swapped = swapped || !restarts && (swaps(want, c) || swaps(is, has))
	})
	return swapped
}

// resizeFits says why a resized pod does not fit on the node, if so, and as what it is
// counted that it never will; the lock is held. As upstream has it, a pod that is larger than
// the whole node waits like one that others leave no room for: a node may be given more.
func (k *Kubelet) resizeFits(is *corev1.Pod, claim *resizeClaim) (reason, message, detail string) {
	if swappedResize(is, claim.pod, k.nodeConfig().Swaps) {
		return corev1.PodReasonInfeasible, "In-place resize of containers with swap is not supported.", "swap_limitation"
	}
	if m, detail := pinnedResize(k.cfg.Settings, is, claim.pod); m != "" {
		return corev1.PodReasonInfeasible, m, detail
	}
	node := k.node.Load()
	if node == nil {
		return "", "", ""
	}
	var others []*corev1.Pod
	var waiting []*resizeClaim
	for _, w := range k.workers {
		if w.uid != claim.pod.UID && !w.isGone() && w.active() {
			others = append(others, w.shown.Load().pod)
			if c := w.resizeDeferred.Load(); c != nil {
				waiting = append(waiting, c)
			}
		}
	}
	a := &admission{k: k, pod: claim.pod, others: claim.behind(is, others, waiting, node)}
	for _, h := range admitHandlers {
		if h.once {
			continue
		}
		if r := h.admit(a); r != nil {
			return corev1.PodReasonDeferred, r.message, ""
		}
	}
	a.preempt()
	return "", "", ""
}

// applyResizes widens the pod's group first and narrows it last, so that a
// container never has more than its pod.
func (k *Kubelet) applyResizes(ctx context.Context, pod *corev1.Pod, sandbox string, limits cgroup.Limits, all []resizing) error {
	if err := k.roomToShrink(ctx, pod, limits, all); err != nil {
		return err
	}
	if err := k.resizeSandbox(ctx, pod, sandbox); err != nil {
		return err
	}
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

// resizeSandbox has the runtime know what the pod is to have, which may not want that: a
// runtime whose pods are machines, or a plugin of it. One that does not know the call wants it.
func (k *Kubelet) resizeSandbox(ctx context.Context, pod *corev1.Pod, sandbox string) error {
	if sandbox == "" {
		return nil
	}
	q := &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: sandbox}
	q.Overhead, q.Resources = k.nodeConfig().SandboxResources(pod)
	_, err := k.runtime.UpdatePodSandboxResources(ctx, q)
	switch s := status.Convert(err); {
	case s.Code() == codes.Unimplemented, s.Code() == codes.Unknown && strings.Contains(s.Message(), "not implemented"): // containerd's until 2.2
		return nil
	case err != nil:
		return fmt.Errorf("the runtime does not resize the sandbox: %w", err)
	}
	return nil
}
