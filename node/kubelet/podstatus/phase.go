package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

// containerCounts is how many containers of a pod are in which state.
type containerCounts struct {
	// Of the init containers that run to completion.
	pendingInit, failedInit int
	// Of the sidecars, those that have not started.
	pendingSidecars int
	// Of the regular containers, and of the sidecars the first three.
	unknown, running, waiting int
	// stopped are those that ended at least once and do not run; of these,
	// succeeded ended with code 0, and final are not started again.
	stopped, succeeded, final int
	// anew: all containers begin anew, so that none has ended for good.
	anew bool
	// replaced says of a container that ended that another takes its place.
	replaced func(name string) bool
	// initialized: a regular container has run.
	initialized bool
}

// phase is the phase of a pod whose containers have these statuses, and begin all anew
// or do not; those that are replaced have not ended for good.
func phase(pod *corev1.Pod, statuses []corev1.ContainerStatus, terminal, anew bool, replaced func(name string) bool) corev1.PodPhase {
	n := containerCounts{anew: anew, replaced: replaced}
	n.countInit(pod, statuses)
	n.countRegular(pod, statuses)
	switch {
	case n.failedInit > 0:
		return corev1.PodFailed
	case n.pendingInit > 0, n.pendingSidecars > 0 && !n.initialized, n.waiting > 0:
		return corev1.PodPending
	case n.running > 0 && n.unknown == 0:
		return corev1.PodRunning
	case n.running == 0 && n.stopped > 0 && n.unknown == 0:
		if !terminal && n.stopped != n.final {
			return corev1.PodRunning
		}
		if n.stopped == n.succeeded {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodPending
}

func (n *containerCounts) countInit(pod *corev1.Pod, statuses []corev1.ContainerStatus) {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		s := FindContainer(statuses, c.Name)
		if podspec.IsSidecar(c) {
			n.countSidecar(s)
			continue
		}
		switch last := lastTermination(s); {
		case last == nil:
			n.pendingInit++
		case last.ExitCode != 0 && !n.startsAgain(pod, c, last):
			n.failedInit++
		}
	}
}

func (n *containerCounts) countSidecar(s *corev1.ContainerStatus) {
	switch {
	case s == nil:
		n.unknown++
	case s.State.Running != nil:
		if s.Started == nil || !*s.Started {
			n.pendingSidecars++
		}
		n.running++
	case lastTermination(s) == nil:
		n.pendingSidecars++
		n.waiting++
	}
}

func (n *containerCounts) countRegular(pod *corev1.Pod, statuses []corev1.ContainerStatus) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s := FindContainer(statuses, c.Name)
		last := lastTermination(s)
		n.initialized = n.initialized || s != nil && (s.State.Running != nil || last != nil)
		switch {
		case s == nil:
			n.unknown++
		case s.State.Running != nil:
			n.running++
		case last == nil:
			n.waiting++
		default:
			n.stopped++
			if !n.startsAgain(pod, c, last) {
				n.final++
			}
			if last.ExitCode == 0 && s.State.Terminated != nil {
				n.succeeded++
			}
		}
	}
}

// startsAgain says whether a container that ended so is started again.
func (n *containerCounts) startsAgain(pod *corev1.Pod, c *corev1.Container, last *corev1.ContainerStateTerminated) bool {
	return n.anew || n.replaced(c.Name) || last.Reason == podspec.ReasonRestartingAll || podspec.RestartsOn(pod, c, last.ExitCode)
}

// lastTermination is how a container ended that does not run, or nil.
func lastTermination(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case s == nil:
		return nil
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.State.Waiting != nil:
		return s.LastTerminationState.Terminated
	}
	return nil
}
