package disruption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func pod(name string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
}

func TestPlan(t *testing.T) {
	going := pod("going", corev1.ConditionTrue)
	going.DeletionTimestamp = &metav1.Time{Time: now}
	pods := []*corev1.Pod{pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionTrue), pod("c", corev1.ConditionFalse), going}
	ago := func(d time.Duration) metav1.Time { return metav1.Time{Time: now.Add(-d)} }
	for _, tt := range []struct {
		name      string
		spec      policyv1.PodDisruptionBudgetSpec
		disrupted map[string]metav1.Time
		expected  int
		want      string // healthy/desired/expected, allowed, still disrupted, look again, left behind
	}{
		{"at least one", policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}, nil, 4, "2/1/4 1 0 0s 0"},
		{"at least half", policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromString("50%"))}, nil, 3, "2/2/3 0 0 0s 0"},
		{"at most one away", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))}, nil, 2, "2/1/2 1 0 0s 0"},
		{"at most a third away", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromString("34%"))}, nil, 3, "2/1/3 1 0 0s 0"},
		{"more than there are", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(9))}, nil, 3, "2/0/3 2 0 0s 0"},
		{"none expected", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))}, nil, 0, "2/0/0 0 0 0s 0"},
		{"no rule", policyv1.PodDisruptionBudgetSpec{}, nil, 4, "2/0/0 0 0 0s 0"},
		{"one is on its way out", policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))},
			map[string]metav1.Time{"a": ago(30 * time.Second), "going": ago(time.Second), "gone": ago(time.Second)}, 4, "1/1/4 0 1 1m30s 0"},
		{"one should have gone", policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))},
			map[string]metav1.Time{"a": ago(3 * time.Minute)}, 4, "2/1/4 1 0 0s 1"},
	} {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 7}, Spec: tt.spec,
			Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: tt.disrupted}}
		next, again, left, err := plan(budget, pods, tt.expected, now)
		s := next.Status
		got := fmt.Sprintf("%d/%d/%d %d %d %v %d", s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed, len(s.DisruptedPods), again, len(left))
		if err != nil || got != tt.want {
			t.Errorf("%s: %s %v, want %s", tt.name, got, err, tt.want)
		}
		c := s.Conditions[0]
		if may := s.DisruptionsAllowed > 0; may != (c.Status == metav1.ConditionTrue) || may != (c.Reason == policyv1.SufficientPodsReason) || c.ObservedGeneration != 7 {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
	if _, _, _, err := plan(&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromString("x"))}}, pods, 1, now); err == nil {
		t.Error("x is a part")
	}
}

func TestStale(t *testing.T) {
	announced := func(reason string, status corev1.ConditionStatus, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: status,
			Reason: reason, LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}}}}}
		change(p)
		return p
	}
	as := func(*corev1.Pod) {}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		left time.Duration
		want bool
	}{
		"none":           {pod("p", corev1.ConditionTrue), 0, false},
		"fresh":          {announced("PreemptionByScheduler", corev1.ConditionTrue, as), time.Minute, true},
		"old":            {announced("X", corev1.ConditionTrue, func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime.Time = now.Add(-time.Hour) }), 0, true},
		"taken back":     {announced("X", corev1.ConditionFalse, as), 0, false},
		"by the kubelet": {announced(corev1.PodReasonTerminationByKubelet, corev1.ConditionTrue, as), 0, false},
		"going":          {announced("X", corev1.ConditionTrue, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), 0, false},
		"over":           {announced("X", corev1.ConditionTrue, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 0, false},
	} {
		if left, got := stale(tt.pod, now); left != tt.left || got != tt.want {
			t.Errorf("%s: %v %v", name, left, got)
		}
	}
}
