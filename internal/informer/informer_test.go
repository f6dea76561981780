package informer

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

func TestObject(t *testing.T) {
	pod := &corev1.Pod{}
	for _, c := range []struct {
		name        string
		event, want any
	}{
		{"an object", pod, pod},
		{"a missed deletion", cache.DeletedFinalStateUnknown{Key: "a/b", Obj: pod}, pod},
		{"a missed deletion of what was never cached", cache.DeletedFinalStateUnknown{Key: "a/b"}, nil},
		{"nothing", nil, nil},
	} {
		if got := Object(c.event); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestTrimMetadata(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"b": "c"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	got, err := TrimMetadata(pod)
	if err != nil || got != any(pod) || pod.Annotations != nil || pod.ManagedFields != nil || pod.Labels["app"] != "a" || pod.Name != "a" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := TrimMetadata("no object"); err != nil || got != "no object" {
		t.Errorf("what is no object: %v, %v", got, err)
	}
}

func TestSame(t *testing.T) {
	pod := func(uid string) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}} }
	for _, c := range []struct {
		name     string
		old, now any
		want     bool
	}{
		{"another revision", pod("a"), pod("a"), true},
		{"another of the name", pod("a"), pod("b"), false},
		{"no object", nil, pod("a"), false},
	} {
		if got := Same(c.old, c.now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
