package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestWithStatus(t *testing.T) {
	p := typed(pod("a"))
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Message: "before", Conditions: []corev1.PodCondition{{Type: "One"}}}
	b, err := encoded(p)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = withStatus(b, "after", corev1.PodCondition{Type: "Two"}); err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if _, _, err := coder.Decode(b, nil, &got); err != nil {
		t.Fatal(err)
	}
	if s := got.Status; s.Message != "after" || s.Phase != corev1.PodPending || len(s.Conditions) != 2 || got.Name != "a" || len(got.Spec.Containers) != 1 {
		t.Errorf("got %+v", s)
	}
	if _, err := withStatus(nil, "", corev1.PodCondition{}); err == nil {
		t.Error("nothing was taken for a pod")
	}
}
