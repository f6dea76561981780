// Package pods is what the controllers that make pods know of pods: how to make
// them from a template, when they count, and which to remove first. It reads
// what it is given, and writes Pods and Events through a PodControl.
package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Active says that a pod still runs or will.
func Active(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && p.DeletionTimestamp == nil
}

// Terminal says that a pod's containers have ended for good.
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Terminating says that a pod is being deleted and its containers may run.
func Terminating(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && !Terminal(p) }

// Condition is the pod's condition of that type, or nil.
func Condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Ready says that a pod serves.
func Ready(p *corev1.Pod) bool {
	c := Condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// AvailableIn is how long it takes until the pod has been ready for minReady
// seconds; ok is false when it is not ready.
func AvailableIn(p *corev1.Pod, minReady int32, now time.Time) (left time.Duration, ok bool) {
	c := Condition(p, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return 0, false
	}
	if minReady == 0 {
		return 0, true
	}
	if c.LastTransitionTime.IsZero() {
		return 0, false
	}
	return max(0, c.LastTransitionTime.Add(time.Duration(minReady)*time.Second).Sub(now)), true
}

// Available says that a pod has been ready for at least minReady seconds.
func Available(p *corev1.Pod, minReady int32, now time.Time) bool {
	left, ok := AvailableIn(p, minReady, now)
	return ok && left == 0
}

// SetCondition stores c in the status and reports whether that changed anything.
func SetCondition(status *corev1.PodStatus, c corev1.PodCondition) bool {
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		changed := old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message ||
			!old.LastProbeTime.Equal(&c.LastProbeTime) || old.ObservedGeneration != c.ObservedGeneration
		*old = c
		return changed
	}
	status.Conditions = append(status.Conditions, c)
	return true
}
