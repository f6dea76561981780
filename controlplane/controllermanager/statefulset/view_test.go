package statefulset

import (
	"fmt"
	"math"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReplicasWithoutEnd: how many pods are asked for takes no memory and no time, only how
// many there are.
func TestReplicasWithoutEnd(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	set.Spec.Replicas = new(int32(math.MaxInt32))
	set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 2}
	set.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
	var all []*corev1.Pod
	for _, n := range []int{1, 2, 4, 1_000_000} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d", n)}}
		p.Status.Phase = corev1.PodPending
		all = append(all, p)
	}
	v := &view{set: set}
	v.sort(all)
	v.count()
	if v.status.Replicas != 4 || len(v.condemned) != 1 {
		t.Errorf("%d pods, %d of them not wanted", v.status.Replicas, len(v.condemned))
	}
	if p := v.outdated(); p != nil {
		t.Error("while the highest is missing there is one to replace:", p.Name)
	}
	if got, want := v.upTo(3), []int{0, 1, 2, 3, 4, 999_998}; !slices.Equal(got, want) {
		t.Errorf("looked at %v, want %v", got, want)
	}
	set.Spec.Replicas = new(int32(4))
	v.sort(all[1:3])
	if got, want := v.upTo(3), []int{0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("looked at %v, want %v", got, want)
	}
}
