package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// containerStatuses makes the statuses of one kind of containers.
func containerStatuses(in Input, specs []corev1.Container, old []corev1.ContainerStatus, kind podspec.ContainerKind) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, 0, len(specs))
	for i := range specs {
		out = append(out, containerStatus(in, &specs[i], FindContainer(old, specs[i].Name), kind))
	}
	return out
}

// FindContainer is the status of the container of that name, or nil.
func FindContainer(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// containerStatus makes the status of one container from what the runtime
// reports of it or, without that, from its last status.
func containerStatus(in Input, spec *corev1.Container, old *corev1.ContainerStatus, kind podspec.ContainerKind) corev1.ContainerStatus {
	var s corev1.ContainerStatus
	latest := in.Observed.Latest(spec.Name)
	switch {
	case latest != nil:
		s = createdStatus(in, spec, latest, old, kind)
	case old != nil && old.State.Waiting == nil && kind != podspec.EphemeralContainer && removedForAll(in):
		s = removedStatus(in, spec, old, kind)
	case old != nil && old.State.Terminated != nil:
		s = *old.DeepCopy() // removed from the runtime since
	case old != nil:
		s = missingStatus(in, spec, old, kind)
	default:
		s = initialStatus(in, spec, kind)
	}
	if s.VolumeMounts == nil {
		s.VolumeMounts = mountStatuses(spec, in.RecursiveReadOnly)
	}
	if latest != nil && kind != podspec.EphemeralContainer {
		res := spec.Resources.DeepCopy()
		s.AllocatedResources = res.Requests
		s.Resources = actualResources(res, latest, old)
	}
	if w := waitingState(in, spec, latest, kind); w != nil && !(in.Terminal && endedWithPod(s)) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = corev1.ContainerState{Waiting: w}
	} else if s.State.Terminated != nil && in.Ended == nil && latest != nil && latest.Replaced && old != nil && old.State.Running != nil {
		// One step for those who watch: the old, then the new. Once it was shown how a
		// container ended that the policy would not start again, the API takes no other state.
		s.State = old.State
	}
	setReadiness(in, &s, spec, latest, kind)
	return s
}

// initialStatus is the status of a container that was never created.
func initialStatus(in Input, spec *corev1.Container, kind podspec.ContainerKind) corev1.ContainerStatus {
	reason := "ContainerCreating"
	if len(in.Pod.Spec.InitContainers) > 0 && kind != podspec.EphemeralContainer {
		reason = "PodInitializing"
	}
	return corev1.ContainerStatus{
		Name: spec.Name, Image: spec.Image,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
	}
}

// createdStatus is the status of a container that the runtime has.
func createdStatus(in Input, spec *corev1.Container, latest *runtimestate.Container, old *corev1.ContainerStatus, kind podspec.ContainerKind) corev1.ContainerStatus {
	s := initialStatus(in, spec, kind)
	s.Image, s.ImageID = latest.Image.GetUserSpecifiedImage(), latest.ImageRef
	if s.Image == "" {
		s.Image = latest.Image.GetImage()
	}
	s.ContainerID = in.RuntimeName + "://" + latest.Id
	s.RestartCount = int32(latest.Restarts())
	if is := observedState(in, latest, old); is != (corev1.ContainerState{}) {
		s.State = is
	}
	if prev := in.Observed.Previous(latest); prev != nil {
		s.LastTerminationState = observedState(in, prev, old)
	} else if old != nil && old.ContainerID != s.ContainerID && old.State.Terminated != nil {
		s.LastTerminationState.Terminated = old.State.Terminated
	} else if old != nil {
		s.LastTerminationState.Terminated = old.LastTerminationState.Terminated
	}
	if u := latest.User.GetLinux(); u != nil {
		s.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	return s
}
