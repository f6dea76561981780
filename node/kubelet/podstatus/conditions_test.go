package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podtest"
)

// TestResizeTimes: a condition of a resize says since when its reason is that, and when it was
// probed. Both stay while nothing is new, so that nothing is written.
func TestResizeTimes(t *testing.T) {
	at := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }
	for _, c := range []struct {
		name          string
		was           *corev1.PodCondition
		is            corev1.PodCondition
		transit, seen int64
	}{
		{"new", nil, corev1.PodCondition{Type: corev1.PodResizePending, Reason: "Deferred"}, 1000, 1000},
		{"the same", &corev1.PodCondition{Reason: "Deferred", Message: "m"}, corev1.PodCondition{Type: corev1.PodResizePending, Reason: "Deferred", Message: "m"}, 7, 8},
		{"another message", &corev1.PodCondition{Reason: "Deferred"}, corev1.PodCondition{Type: corev1.PodResizePending, Reason: "Deferred", Message: "m"}, 7, 1000},
		{"another reason", &corev1.PodCondition{Reason: "Deferred"}, corev1.PodCondition{Type: corev1.PodResizePending, Reason: "Infeasible"}, 1000, 1000},
		{"another size is pending", &corev1.PodCondition{Reason: "Deferred", ObservedGeneration: 1}, corev1.PodCondition{Type: corev1.PodResizePending, Reason: "Deferred"}, 7, 1000},
		{"another size is in progress", &corev1.PodCondition{ObservedGeneration: 1}, corev1.PodCondition{Type: corev1.PodResizeInProgress}, 1000, 1000},
		{"in progress, failed", &corev1.PodCondition{}, corev1.PodCondition{Type: corev1.PodResizeInProgress, Reason: "Error"}, 1000, 1000},
	} {
		p := podtest.Pod("p", "a")
		p.Generation, c.is.Status = 2, corev1.ConditionTrue
		if c.was != nil {
			c.was.Type, c.was.Status, c.was.LastTransitionTime, c.was.LastProbeTime = c.is.Type, corev1.ConditionTrue, at(7), at(8)
			if c.was.ObservedGeneration == 0 {
				c.was.ObservedGeneration = 2
			}
			p.Status.Conditions = []corev1.PodCondition{*c.was}
		}
		s := statusOf(p, podtest.Observed(podtest.Container("a", podtest.Running, 0)), func(in *Input) { in.ResizePending = &c.is })
		if got := FindCondition(s.Conditions, c.is.Type); got.LastTransitionTime != at(c.transit) || got.LastProbeTime != at(c.seen) {
			t.Errorf("%s: %v, probed at %v", c.name, got.LastTransitionTime, got.LastProbeTime)
		}
	}
}
