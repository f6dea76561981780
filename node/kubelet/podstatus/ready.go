package podstatus

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

func containersReady(pod *corev1.Pod, all []corev1.ContainerStatus, phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	var unknown, unready []string
	look := func(name string) {
		switch s := FindContainer(all, name); {
		case s == nil:
			unknown = append(unknown, name)
		case !s.Ready:
			unready = append(unready, name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if podspec.IsSidecar(&pod.Spec.InitContainers[i]) {
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
		c.Reason, c.Message = "ContainersNotReady", containersMessage(unknown, unready, "unready")
	default:
		c.Status = corev1.ConditionTrue
	}
	return c
}

// readinessGates is the Ready condition of a pod whose containers are.
func readinessGates(pod *corev1.Pod, foreign []corev1.PodCondition) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	var m []string
	for _, g := range pod.Spec.ReadinessGates {
		switch o := FindCondition(foreign, g.ConditionType); {
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

func containersMessage(unknown, other []string, what string) string {
	var m []string
	if len(unknown) > 0 {
		m = append(m, fmt.Sprintf("containers with unknown status: %s", unknown))
	}
	if len(other) > 0 {
		m = append(m, fmt.Sprintf("containers with %s status: %s", what, other))
	}
	return strings.Join(m, ", ")
}
