package kubelet

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// owned are the conditions the kubelet writes; all others it leaves alone.
var owned = map[corev1.PodConditionType]bool{
	corev1.PodScheduled: true, corev1.PodReady: true, corev1.PodInitialized: true,
	corev1.ContainersReady: true, corev1.PodReadyToStartContainers: true,
	corev1.PodResizePending: true, corev1.PodResizeInProgress: true,
}

func keepForeign(in []corev1.PodCondition) (out []corev1.PodCondition) {
	for _, c := range in {
		if !owned[c.Type] {
			out = append(out, c)
		}
	}
	return out
}

func findCondition(in []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range in {
		if in[i].Type == t {
			return &in[i]
		}
	}
	return nil
}

// conditions are the pod's conditions, foreign ones first as they were.
func conditions(in statusInput, s *corev1.PodStatus) []corev1.PodCondition {
	pod := in.pod
	out := keepForeign(pod.Status.Conditions)
	if d := findCondition(in.old.Conditions, corev1.DisruptionTarget); d != nil && findCondition(out, d.Type) == nil {
		out = append(out, *d)
	}
	if in.ended != nil && in.ended.disruption != "" && findCondition(out, corev1.DisruptionTarget) == nil {
		out = append(out, stamp(in, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: in.ended.disruption, Message: in.ended.message}))
	}
	if in.resize != nil && !in.terminal {
		out = append(out, stamp(in, *in.resize))
	}
	all := append(append([]corev1.ContainerStatus(nil), s.InitContainerStatuses...), s.ContainerStatuses...)
	need, _ := sandboxChanged(pod, in.view)
	start := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	if need {
		start.Status = corev1.ConditionFalse
	}
	containers := containersReady(pod, all, s.Phase)
	ready := containers
	ready.Type = corev1.PodReady
	if containers.Status == corev1.ConditionTrue {
		ready = gates(pod, out)
	}
	for _, c := range []corev1.PodCondition{start, initialized(pod, all, s.Phase), ready, containers, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}} {
		out = append(out, stamp(in, c))
	}
	return out
}

// stamp keeps the time of the last transition if the status stayed.
func stamp(in statusInput, c corev1.PodCondition) corev1.PodCondition {
	c.ObservedGeneration = in.pod.Generation
	c.LastTransitionTime = seconds(in.now)
	for _, from := range [][]corev1.PodCondition{in.old.Conditions, in.pod.Status.Conditions} {
		if o := findCondition(from, c.Type); o != nil {
			if o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
			break
		}
	}
	return c
}

func named(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

func containersReady(pod *corev1.Pod, all []corev1.ContainerStatus, phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	var unknown, unready []string
	look := func(name string) {
		switch s := named(all, name); {
		case s == nil:
			unknown = append(unknown, name)
		case !s.Ready:
			unready = append(unready, name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if isSidecar(&pod.Spec.InitContainers[i]) {
			look(pod.Spec.InitContainers[i].Name)
		}
	}
	for i := range pod.Spec.Containers {
		look(pod.Spec.Containers[i].Name)
	}
	switch {
	case phase == corev1.PodSucceeded && len(unknown) == 0:
		c.Reason = "PodCompleted"
	case phase == corev1.PodFailed:
		c.Reason = "PodFailed"
	case len(unknown)+len(unready) > 0:
		c.Reason, c.Message = "ContainersNotReady", lists(unknown, unready, "unready")
	default:
		c.Status = corev1.ConditionTrue
	}
	return c
}

func lists(unknown, other []string, what string) string {
	var m []string
	if len(unknown) > 0 {
		m = append(m, fmt.Sprintf("containers with unknown status: %s", unknown))
	}
	if len(other) > 0 {
		m = append(m, fmt.Sprintf("containers with %s status: %s", what, other))
	}
	return strings.Join(m, ", ")
}

// gates is the Ready condition of a pod whose containers are.
func gates(pod *corev1.Pod, foreign []corev1.PodCondition) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	var m []string
	for _, g := range pod.Spec.ReadinessGates {
		switch o := findCondition(foreign, g.ConditionType); {
		case o == nil:
			m = append(m, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(g.ConditionType)))
		case o.Status != corev1.ConditionTrue:
			m = append(m, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(g.ConditionType), o.Status))
		}
	}
	if len(m) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(m, ", ")
	}
	return c
}

func initialized(pod *corev1.Pod, all []corev1.ContainerStatus, phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	var unknown, incomplete []string
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		s := named(all, spec.Name)
		switch {
		case s == nil:
			unknown = append(unknown, spec.Name)
		case isSidecar(spec) && (s.Started == nil || !*s.Started), !isSidecar(spec) && !s.Ready:
			incomplete = append(incomplete, spec.Name)
		}
	}
	if phase == corev1.PodSucceeded && len(unknown) == 0 {
		c.Reason = "PodCompleted"
		return c
	}
	for i := range pod.Spec.Containers {
		if s := named(all, pod.Spec.Containers[i].Name); s != nil && s.Started != nil && *s.Started {
			return c
		}
	}
	if len(unknown)+len(incomplete) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ContainersNotInitialized", lists(unknown, incomplete, "incomplete")
	}
	return c
}
