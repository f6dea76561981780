package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// TestWhoTakesRoom: on a node for two pods, neither one that was rejected nor one
// that the API no longer has keeps another out.
func TestWhoTakesRoom(t *testing.T) {
	k := &Kubelet{workers: map[types.UID]*worker{}, events: record.NewFakeRecorder(10)}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}
	k.node.Store(node)
	come := func(name string) bool {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n"}}
		w := newWorker(k, p)
		e := k.admit(p)
		if e != nil {
			w.reject(e)
		}
		k.workers[p.UID] = w
		return e == nil
	}
	if !come("a") || !come("b") {
		t.Fatal("the first two are not taken")
	}
	if come("c") || come("d") {
		t.Fatal("a third is taken")
	}
	if s := k.workers["c"].shown.Load(); s.status.Phase != corev1.PodFailed {
		t.Errorf("a rejected pod shows as %q", s.status.Phase)
	}
	k.workers["a"].finish()
	if !come("e") {
		t.Error("the place of one that is gone is not given away")
	}
	if come("f") {
		t.Error("one too many is taken")
	}
}
