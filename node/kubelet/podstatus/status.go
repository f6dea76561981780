// Package podstatus computes the status of a pod. It reads the Pod, its last status
// and what the container runtime has of it, and writes nothing.
package podstatus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// Input is everything a pod's status is made of.
type Input struct {
	Pod *corev1.Pod
	// Old is the last status made here, or the API's at the start.
	Old *corev1.PodStatus
	// API is the status that the API holds; nil: Old.
	API *corev1.PodStatus
	// Observed is what the runtime has of the pod.
	Observed *runtimestate.Pod
	// Waiting is why containers wait that could not be started, by name.
	Waiting map[string]corev1.ContainerStateWaiting
	// Messages are the termination messages of exited containers, by id.
	Messages map[string]string
	// Started and Ready answer for running containers, from probes.
	Started func(c *runtimestate.Container, spec *corev1.Container) bool
	Ready   func(c *runtimestate.Container, spec *corev1.Container) bool
	// RecursiveReadOnly says whether the pod's runtime can mount read-only what is mounted
	// below a volume too. It is asked for pods that want that.
	RecursiveReadOnly func() bool
	// Unmounted: the volumes are not there yet. Upstream makes the sandbox after them,
	// which is why the pod is not shown as ready to start its containers before.
	Unmounted bool
	// Terminal: no container runs any more and none will be started.
	Terminal bool
	// Ended overrides phase, reason and message of a pod ended by the kubelet, unless it was
	// disrupted and its containers ended well.
	Ended *Ending
	// RuntimeName is the container runtime's in the ids of containers.
	RuntimeName string
	// PodIPs and HostIPs are the addresses of the pod and of the node.
	PodIPs, HostIPs []string
	Now             time.Time
	// ResizePending is the condition of a resize that was not begun, Resizing that of one that
	// was and is not done; nil if there is none.
	ResizePending, Resizing *corev1.PodCondition
	// anew: all containers are ended and removed, to begin anew.
	anew bool
}

// Ending is why the kubelet ended a pod.
type Ending struct {
	Reason, Message string
	// Rejected: the pod was not admitted; none of its containers was created.
	Rejected bool
	// Disruption is the reason of the condition DisruptionTarget, if any.
	Disruption string
	// Why is its message, if it is not the pod's.
	Why string
}

func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// Compute makes the status that the API shows of a pod.
func Compute(in Input) corev1.PodStatus {
	if in.API == nil {
		in.API = in.Old
	}
	pod, old := in.Pod, in.Old
	s := *in.API // what is not written below is others'
	s.ObservedGeneration, s.StartTime = pod.Generation, startTime(old, in.Now)
	if in.Ended != nil && in.Ended.Rejected {
		s.QOSClass, s.Phase = podspec.ComputeQOS(pod), corev1.PodFailed
		s.Reason, s.Message = in.Ended.Reason, "Pod was rejected: "+in.Ended.Message
		s.Conditions = othersConditions(in.API.Conditions)
		return s
	}
	if neverRan(in) {
		return *in.API
	}
	in.anew = in.Ended == nil && len(runtimestate.RestartAllSources(pod, in.Observed)) > 0
	s.QOSClass = podspec.QOS(pod)
	s.Reason, s.Message, s.EphemeralContainerStatuses = "", "", nil
	s.InitContainerStatuses = containerStatuses(in, pod.Spec.InitContainers, old.InitContainerStatuses, podspec.InitContainer)
	s.ContainerStatuses = containerStatuses(in, pod.Spec.Containers, old.ContainerStatuses, podspec.MainContainer)
	if len(pod.Spec.EphemeralContainers) > 0 {
		list := make([]corev1.Container, len(pod.Spec.EphemeralContainers))
		for i := range list {
			list[i] = corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
		s.EphemeralContainerStatuses = containerStatuses(in, list, old.EphemeralContainerStatuses, podspec.EphemeralContainer)
	}
	slices.SortFunc(s.ContainerStatuses, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	setPhase(in, &s)
	setPodResources(in, &s)
	setAddresses(in, &s)
	s.Conditions = conditions(in, &s)
	endContainers(in, &s) // last: all else is made of what is known of them
	return s
}

// neverRan says of a pod that it has ended without a container, as one that was rejected
// before a restart of the kubelet: it does not wait for one now.
func neverRan(in Input) bool {
	return isTerminal(in.API.Phase) && (in.Ended == nil || in.Ended.Reason == "") && len(in.Observed.Containers) == 0 &&
		len(in.Old.ContainerStatuses)+len(in.API.ContainerStatuses) == 0
}

// setPhase sets the phase of a pod whose containers have their statuses, with its
// reason and message.
func setPhase(in Input, s *corev1.PodStatus) {
	old := in.Old
	replaced := func(name string) bool {
		c := in.Observed.Latest(name)
		return in.Ended == nil && c != nil && c.Replaced
	}
	s.Phase = phase(in.Pod, append(slices.Clone(s.ContainerStatuses), s.InitContainerStatuses...), in.Terminal, in.anew, replaced)
	if in.Terminal && podspec.IsStatic(in.Pod) && slices.ContainsFunc(slices.Concat(old.ContainerStatuses, old.InitContainerStatuses), endedWithPod) {
		s.Phase = old.Phase // which did not follow from how its containers were ended
	}
	for _, known := range []corev1.PodPhase{old.Phase, in.API.Phase} {
		if isTerminal(known) { // there is no way back
			s.Phase = known
		}
	}
	if s.Phase == old.Phase {
		s.Reason, s.Message = cmp.Or(old.Reason, in.API.Reason), cmp.Or(old.Message, in.API.Message)
	}
	if e := in.Ended; e != nil && e.Reason != "" && !wasDisrupted(in, s.Phase) {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, e.Reason, e.Message
	}
	// What is over has an end, also where nothing began: controllers wait for it.
	if in.Terminal && !isTerminal(s.Phase) && !podspec.IsStatic(in.Pod) {
		s.Phase = corev1.PodFailed
	}
	// A pod becomes Failed or Succeeded only once none of its containers runs.
	if isTerminal(s.Phase) && !in.Terminal && in.Ended != nil && len(in.Observed.Running()) > 0 && old.Phase != s.Phase {
		s.Phase, s.Reason, s.Message = old.Phase, old.Reason, old.Message
	}
}

// wasDisrupted says of a pod that had to make room, or go with its node, that all of its
// containers ended well nevertheless: as upstream has it, such a pod has succeeded, and only
// its condition DisruptionTarget says that it was ended.
func wasDisrupted(in Input, phase corev1.PodPhase) bool {
	return in.Ended.Disruption != "" && in.Terminal && phase == corev1.PodSucceeded && !podspec.IsStatic(in.Pod)
}

func isTerminal(p corev1.PodPhase) bool { return p == corev1.PodFailed || p == corev1.PodSucceeded }

// setAddresses sets the addresses of the pod and of its node.
func setAddresses(in Input, s *corev1.PodStatus) {
	s.HostIP, s.HostIPs, s.PodIP, s.PodIPs = "", nil, "", nil
	for _, ip := range in.PodIPs {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(in.HostIPs) > 0 {
		s.HostIP = in.HostIPs[0]
		for _, ip := range in.HostIPs[:min(2, len(in.HostIPs))] {
			s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
		}
		if in.Pod.Spec.HostNetwork && len(s.PodIPs) == 0 {
			for _, ip := range in.HostIPs[:min(2, len(in.HostIPs))] {
				s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
			}
		}
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

func startTime(old *corev1.PodStatus, now time.Time) *metav1.Time {
	if old.StartTime != nil {
		return old.StartTime
	}
	t := seconds(now)
	return &t
}
