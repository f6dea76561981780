package replicaset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRatios: the ages of ready pods that go, in those of the youngest one that is ready.
func TestRatios(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(age time.Duration, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
	}
	young, old, unready := pod(time.Minute, corev1.ConditionTrue), pod(5*time.Minute, corev1.ConditionTrue), pod(time.Second, corev1.ConditionFalse)
	all := []*corev1.Pod{young, old, unready}
	for name, c := range map[string]struct {
		remove []*corev1.Pod
		want   []float64
	}{
		"two go":        {[]*corev1.Pod{unready, old}, []float64{5}},
		"the youngest":  {[]*corev1.Pod{young}, []float64{1}},
		"none":          {nil, nil},
		"all":           {all, nil},
		"one not ready": {[]*corev1.Pod{unready}, nil},
	} {
		if got := ratios(all, c.remove, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
