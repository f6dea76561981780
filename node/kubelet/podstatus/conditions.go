package podstatus

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// owned are the conditions the kubelet writes; all others it leaves alone.
var owned = map[corev1.PodConditionType]bool{
	corev1.PodScheduled: true, corev1.PodReady: true, corev1.PodInitialized: true,
	corev1.ContainersReady: true, corev1.PodReadyToStartContainers: true,
	corev1.PodResizePending: true, corev1.PodResizeInProgress: true,
	corev1.AllContainersRestarting: true,
}

// othersConditions are the conditions that the kubelet does not write.
func othersConditions(in []corev1.PodCondition) (out []corev1.PodCondition) {
	for _, c := range in {
		if !owned[c.Type] {
			out = append(out, c)
		}
	}
	return out
}

// FindCondition is the condition of that type, or nil.
func FindCondition(in []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range in {
		if in[i].Type == t {
			return &in[i]
		}
	}
	return nil
}

// conditions are the pod's conditions, foreign ones first as they were.
func conditions(in Input, s *corev1.PodStatus) []corev1.PodCondition {
	pod := in.Pod
	out := othersConditions(in.API.Conditions)
	if d := FindCondition(in.Old.Conditions, corev1.DisruptionTarget); d != nil && FindCondition(out, d.Type) == nil {
		out = append(out, *d)
	}
	if e := in.Ended; e != nil && e.Disruption != "" && isTerminal(s.Phase) && !isTerminal(in.API.Phase) { // not while containers are being ended
		d := withTransition(in, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: e.Disruption, Message: cmp.Or(e.Why, e.Message)})
		out = append(slices.DeleteFunc(out, func(c corev1.PodCondition) bool { return c.Type == d.Type }), d)
	}
	for _, c := range []*corev1.PodCondition{in.ResizePending, in.Resizing} {
		if c != nil && !in.Terminal {
			out = append(out, resizeCondition(in, *c))
		}
	}
	all := append(append([]corev1.ContainerStatus(nil), s.InitContainerStatuses...), s.ContainerStatuses...)
	need, _ := runtimestate.SandboxChanged(pod, in.Observed)
	start := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	if need || in.Unmounted {
		start.Status = corev1.ConditionFalse
	}
	containers := containersReady(pod, all, s.Phase)
	ready := containers
	ready.Type = corev1.PodReady
	if containers.Status == corev1.ConditionTrue {
		ready = readinessGates(pod, out)
	}
	init := initialized(pod, all, s.Phase)
	if was := FindCondition(in.Old.Conditions, init.Type); was != nil && was.Status == corev1.ConditionTrue && init.Status != was.Status {
		init = corev1.PodCondition{Type: init.Type, Status: was.Status} // there is no way back, as upstream has it
	}
	own := []corev1.PodCondition{start, init, ready, containers, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	if podspec.MayRestartAll(pod) {
		own = append(own, restartingAll(in, s.Phase))
	}
	for _, c := range own {
		out = append(out, withTransition(in, c))
	}
	return out
}

// withTransition completes a condition: the time of its last transition stays if
// its status did. Unless it says which generation of the pod it is about, it is this one.
func withTransition(in Input, c corev1.PodCondition) corev1.PodCondition {
	c.ObservedGeneration = cmp.Or(c.ObservedGeneration, in.Pod.Generation)
	c.LastTransitionTime = seconds(in.Now)
	for _, from := range [][]corev1.PodCondition{in.Old.Conditions, in.API.Conditions} {
		if o := FindCondition(from, c.Type); o != nil {
			if o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
			break
		}
	}
	return c
}

// resizeCondition completes a condition of a resize, which transits with its reason, or if it
// is that of another resize: it is true while it is there. It was probed when it last became
// another; upstream notes each look at the pod, but does not show it for that alone.
func resizeCondition(in Input, c corev1.PodCondition) corev1.PodCondition {
	c = withTransition(in, c)
	was := FindCondition(in.Old.Conditions, c.Type)
	again := was != nil && was.ObservedGeneration == c.ObservedGeneration
	if was == nil || was.Reason != c.Reason || !again && c.Type == corev1.PodResizeInProgress {
		c.LastTransitionTime = seconds(in.Now)
	}
	c.LastProbeTime = seconds(in.Now)
	if again && was.Reason == c.Reason && was.Message == c.Message && !was.LastProbeTime.IsZero() {
		c.LastProbeTime = was.LastProbeTime
	}
	return c
}
