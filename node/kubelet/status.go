package kubelet

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// statusInput is everything a pod's status is made of.
type statusInput struct {
	pod   *corev1.Pod
	old   *corev1.PodStatus
	view  *view
	waits map[string]waitError
	// messages are the last words of exited containers by id.
	messages map[string]string
	// started and ready answer for running containers, from probes.
	started func(c *container, spec *corev1.Container) bool
	ready   func(c *container, spec *corev1.Container) bool
	// terminal: nothing runs any more and nothing will be started.
	terminal bool
	// ended overrides phase, reason and message of a pod ended by the kubelet.
	ended *ending
	// runtime names the container runtime in container ids.
	runtime string
	podIPs  []string
	hostIPs []string
	now     time.Time
	// resize is the condition of a resize under way.
	resize *corev1.PodCondition
}

func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// podStatus makes the status the API shows. It is pure.
func podStatus(in statusInput) corev1.PodStatus {
	pod, old := in.pod, in.old
	if in.ended != nil && in.ended.rejected {
		return corev1.PodStatus{
			ObservedGeneration: pod.Generation, QOSClass: computeQOS(pod), Phase: corev1.PodFailed,
			Reason: in.ended.reason, Message: "Pod was rejected: " + in.ended.message,
			StartTime: startTime(old, in.now), Conditions: keepForeign(old.Conditions),
		}
	}
	s := corev1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           qosOf(pod),
		StartTime:          startTime(old, in.now),
		NominatedNodeName:  old.NominatedNodeName,
		ResourceClaimStatuses: func() []corev1.PodResourceClaimStatus {
			return pod.Status.ResourceClaimStatuses
		}(),
		Resize: old.Resize,
	}
	s.InitContainerStatuses = containerStatuses(in, pod.Spec.InitContainers, old.InitContainerStatuses, initKind)
	s.ContainerStatuses = containerStatuses(in, pod.Spec.Containers, old.ContainerStatuses, mainKind)
	if len(pod.Spec.EphemeralContainers) > 0 {
		list := make([]corev1.Container, len(pod.Spec.EphemeralContainers))
		for i := range list {
			list[i] = corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
		s.EphemeralContainerStatuses = containerStatuses(in, list, old.EphemeralContainerStatuses, ephemeralKind)
	}
	slices.SortFunc(s.ContainerStatuses, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	s.Phase = phase(pod, append(slices.Clone(s.ContainerStatuses), s.InitContainerStatuses...), in.terminal)
	for _, known := range []corev1.PodPhase{old.Phase, pod.Status.Phase} {
		if known == corev1.PodFailed || known == corev1.PodSucceeded { // there is no way back
			s.Phase = known
		}
	}
	if s.Phase == old.Phase {
		s.Reason, s.Message = old.Reason, old.Message
	}
	if in.ended != nil && in.ended.reason != "" {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, in.ended.reason, in.ended.message
	}
	// Pods that are over say so only once nothing runs any more.
	if (s.Phase == corev1.PodFailed || s.Phase == corev1.PodSucceeded) && !in.terminal && in.ended != nil && len(in.view.running()) > 0 && old.Phase != s.Phase {
		s.Phase, s.Reason, s.Message = old.Phase, old.Reason, old.Message
	}
	for _, ip := range in.podIPs {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(in.hostIPs) > 0 {
		s.HostIP = in.hostIPs[0]
		for _, ip := range in.hostIPs[:min(2, len(in.hostIPs))] {
			s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
		}
		if pod.Spec.HostNetwork && len(s.PodIPs) == 0 {
			for _, ip := range in.hostIPs[:min(2, len(in.hostIPs))] {
				s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
			}
		}
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
	s.Conditions = conditions(in, &s)
	return s
}

func startTime(old *corev1.PodStatus, now time.Time) *metav1.Time {
	if old.StartTime != nil {
		return old.StartTime
	}
	t := seconds(now)
	return &t
}

// containerStatuses makes the statuses of one kind of containers.
func containerStatuses(in statusInput, specs []corev1.Container, old []corev1.ContainerStatus, kind containerKind) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, 0, len(specs))
	for i := range specs {
		spec := &specs[i]
		var before *corev1.ContainerStatus
		for j := range old {
			if old[j].Name == spec.Name {
				before = &old[j]
			}
		}
		out = append(out, containerStatus(in, spec, before, kind))
	}
	return out
}

func containerStatus(in statusInput, spec *corev1.Container, old *corev1.ContainerStatus, kind containerKind) corev1.ContainerStatus {
	no := false
	waiting := "ContainerCreating"
	if len(in.pod.Spec.InitContainers) > 0 && kind != ephemeralKind {
		waiting = "PodInitializing"
	}
	s := corev1.ContainerStatus{
		Name: spec.Name, Image: spec.Image, Started: &no,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting}},
	}
	latest := in.view.latest(spec.Name)
	switch {
	case latest != nil:
		s.Image, s.ImageID = latest.Image.GetUserSpecifiedImage(), latest.ImageRef
		if s.Image == "" {
			s.Image = latest.Image.GetImage()
		}
		s.ContainerID = in.runtime + "://" + latest.Id
		s.RestartCount = int32(latest.restarts())
		if is := containerState(in, latest, old); is != (corev1.ContainerState{}) {
			s.State = is
		}
		if prev := in.view.previous(latest); prev != nil {
			s.LastTerminationState = containerState(in, prev, old)
		} else if old != nil && old.ContainerID != s.ContainerID && old.State.Terminated != nil {
			s.LastTerminationState.Terminated = old.State.Terminated
		} else if old != nil {
			s.LastTerminationState.Terminated = old.LastTerminationState.Terminated
		}
		if u := latest.User.GetLinux(); u != nil {
			s.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
		}
	case old != nil && old.State.Terminated != nil:
		s = *old.DeepCopy() // removed from the runtime since
	case old != nil:
		s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
		if old.State.Running != nil {
			gone := &corev1.ContainerStateTerminated{
				Reason: "ContainerStatusUnknown", ExitCode: 137,
				Message: "The container could not be located when the pod was deleted.  The container used to be Running",
			}
			if in.terminal {
				gone.Message = "The container could not be located when the pod was terminated"
				s.State = corev1.ContainerState{Terminated: gone}
			} else if s.LastTerminationState.Terminated == nil {
				s.LastTerminationState.Terminated = gone
				s.RestartCount++
			}
		}
		if kind == initKind && !isSidecar(spec) && anyMainCreated(in.pod, in.view) {
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason:  "Completed",
				Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
			}}
		}
	}
	if s.VolumeMounts == nil {
		s.VolumeMounts = mountStatuses(in, spec)
	}
	if latest != nil || old == nil || old.State.Terminated == nil {
		if res := spec.Resources.DeepCopy(); kind != ephemeralKind && latest != nil {
			s.AllocatedResources = res.Requests
			s.Resources = actual(res, latest, old)
		}
	}
	w, failed := in.waits[spec.Name]
	initDone := kind == initKind && latest != nil && latest.exited() && latest.ExitCode == 0 && !isSidecar(spec)
	if failed && !initDone && (latest == nil || !latest.running()) && shouldRestart(in.pod, spec, latest) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: w.reason, Message: w.message}}
	}
	// What probes say.
	yes := true
	switch {
	case latest != nil && latest.running():
		started := in.started(latest, spec)
		s.Started = &started
		s.Ready = started && in.ready(latest, spec) && (kind != initKind || isSidecar(spec))
		if kind == ephemeralKind {
			s.Started, s.Ready = &yes, false
			s.Started = nil
		}
	case kind == initKind && !isSidecar(spec):
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		s.Started = &no
	case kind == ephemeralKind:
		s.Started = nil
		s.Ready = false
	default:
		s.Started, s.Ready = &no, false
	}
	return s
}

// actual are the resources a container has, which during a resize are not yet
// those of its spec.
func actual(spec *corev1.ResourceRequirements, c *container, old *corev1.ContainerStatus) *corev1.ResourceRequirements {
	is := c.Resources.GetLinux()
	if is == nil || !c.running() {
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
	if q, ok := out.Limits[corev1.ResourceCPU]; ok && is.CpuPeriod > 0 && is.CpuQuota > 0 && differs(is.CpuQuota, quotaOf(q.MilliValue()), minQuota) {
		out.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(is.CpuQuota*1000/is.CpuPeriod, resource.DecimalSI)
	}
	if q, ok := out.Requests[corev1.ResourceCPU]; ok && is.CpuShares > 0 && differs(is.CpuShares, sharesOf(q.MilliValue()), minShares) {
		out.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(is.CpuShares*1000/1024, resource.DecimalSI)
	}
	return out
}

func mountStatuses(in statusInput, spec *corev1.Container) (out []corev1.VolumeMountStatus) {
	for _, m := range spec.VolumeMounts {
		vs := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			vs.RecursiveReadOnly = &mode
		}
		out = append(out, vs)
	}
	return out
}

func anyMainCreated(pod *corev1.Pod, v *view) bool {
	for i := range pod.Spec.Containers {
		if v.latest(pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

func containerState(in statusInput, c *container, old *corev1.ContainerStatus) corev1.ContainerState {
	switch c.State {
	case cri.ContainerState_CONTAINER_RUNNING:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: seconds(c.started())}}
	case cri.ContainerState_CONTAINER_EXITED:
		id := in.runtime + "://" + c.Id
		message := c.Message
		if m, ok := in.messages[c.Id]; ok {
			if message != "" && m != "" {
				message += ": "
			}
			message += m
		} else if old != nil {
			// Read before the kubelet restarted; the file may be gone.
			for _, t := range []*corev1.ContainerStateTerminated{old.State.Terminated, old.LastTerminationState.Terminated} {
				if t != nil && t.ContainerID == id {
					message = t.Message
				}
			}
		}
		t := &corev1.ContainerStateTerminated{
			ExitCode: c.ExitCode, Reason: c.Reason, Message: message,
			FinishedAt: seconds(c.finished()), ContainerID: id,
		}
		if c.StartedAt > 0 {
			t.StartedAt = seconds(c.started())
		}
		if t.Reason == "" {
			t.Reason = "Completed"
			if c.ExitCode != 0 {
				t.Reason = "Error"
			}
		}
		return corev1.ContainerState{Terminated: t}
	}
	return corev1.ContainerState{}
}

// phase sums the containers up.
func phase(pod *corev1.Pod, statuses []corev1.ContainerStatus, terminal bool) corev1.PodPhase {
	find := func(name string) *corev1.ContainerStatus {
		for i := range statuses {
			if statuses[i].Name == name {
				return &statuses[i]
			}
		}
		return nil
	}
	last := func(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
		if s.State.Terminated != nil {
			return s.State.Terminated
		}
		if s.State.Waiting != nil {
			return s.LastTerminationState.Terminated
		}
		return nil
	}
	initialized := false
	for i := range pod.Spec.Containers {
		if s := find(pod.Spec.Containers[i].Name); s != nil && (s.State.Running != nil || last(s) != nil) {
			initialized = true
		}
	}
	pendingInit, pendingSidecars, failed := 0, 0, 0
	var unknown, running, waiting, stopped, succeeded, final int
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		s := find(c.Name)
		if isSidecar(c) {
			switch {
			case s == nil:
				unknown++
			case s.State.Running != nil:
				if s.Started == nil || !*s.Started {
					pendingSidecars++
				}
				running++
			case last(s) == nil:
				pendingSidecars++
				waiting++
			}
			continue
		}
		switch {
		case s == nil || last(s) == nil:
			pendingInit++
		case last(s).ExitCode != 0 && !restartsOn(pod, c, last(s).ExitCode):
			failed++
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s := find(c.Name)
		switch {
		case s == nil:
			unknown++
		case s.State.Running != nil:
			running++
		case last(s) != nil:
			stopped++
			if !restartsOn(pod, c, last(s).ExitCode) {
				final++
			}
			if last(s).ExitCode == 0 && s.State.Terminated != nil {
				succeeded++
			}
		default:
			waiting++
		}
	}
	switch {
	case failed > 0:
		return corev1.PodFailed
	case pendingInit > 0, pendingSidecars > 0 && !initialized, waiting > 0:
		return corev1.PodPending
	case running > 0 && unknown == 0:
		return corev1.PodRunning
	case running == 0 && stopped > 0 && unknown == 0:
		if !terminal && stopped != final {
			return corev1.PodRunning
		}
		if stopped == succeeded {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodPending
}
