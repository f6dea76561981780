package pods

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestToDelete(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       corev1.PodSpec{NodeName: name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}},
		}
		change(p)
		return p
	}
	// From the first to go to the last.
	order := []*corev1.Pod{
		pod("unbound", func(p *corev1.Pod) { p.Spec.NodeName = "" }),
		pod("pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		pod("unready", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }),
		pod("cheap", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-1"} }),
		pod("crowded", func(p *corev1.Pod) { p.Spec.NodeName = "full" }),
		pod("just ready", func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Minute)) }),
		pod("restarting", func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} }),
		pod("young", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute)) }),
		pod("steady", func(*corev1.Pod) {}),
		pod("dear", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "100"} }),
	}
	related := append([]*corev1.Pod{pod("other", func(p *corev1.Pod) { p.Spec.NodeName = "full" })}, order...)
	shuffled := make([]*corev1.Pod, len(order))
	for i, p := range order {
		shuffled[(i*7+3)%len(order)] = p
	}
	got := ToDelete(shuffled, related, len(order)-1, now)
	for i, p := range got {
		if p != order[i] {
			t.Errorf("place %d: %s, want %s", i, p.Name, order[i].Name)
		}
	}
}

func TestSlowStart(t *testing.T) {
	for _, c := range []struct{ n, failAt, done, calls int }{
		{0, -1, 0, 0},
		{10, -1, 10, 10},
		{10, 0, 0, 1},
		{100, 5, 6, 7}, // batches of 1, 2, 4
	} {
		var calls atomic.Int64
		done, err := SlowStart(c.n, func(i int) error {
			calls.Add(1)
			if i == c.failAt {
				return errors.New("refused")
			}
			return nil
		})
		got, want := fmt.Sprint(done, calls.Load(), err != nil), fmt.Sprint(c.done, c.calls, c.failAt >= 0)
		if got != want {
			t.Errorf("%d, failing at %d: done, calls, failed are %s; want %s", c.n, c.failAt, got, want)
		}
	}
}
