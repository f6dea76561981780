package objects

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// TestTooMany: a pod that names more than a node follows has no more watches for it, others
// of its namespace wait for room, and those of other namespaces do not notice.
func TestTooMany(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	notified := map[types.UID]int{}
	s := New(ctx, fake.NewClientset(), func(uid types.UID) {
		mu.Lock()
		defer mu.Unlock()
		notified[uid]++
	})
	defer s.Wait()
	defer cancel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
	from := &pod.Spec.Containers[0].EnvFrom
	for i := range 2 * MaxOfNamespace {
		*from = append(*from, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprint(i)}}})
	}
	s.Use("greedy", Of(pod))
	if len(s.all) != MaxOfNamespace || len(s.use["greedy"]) != MaxOfNamespace || !s.Short("greedy") {
		t.Fatalf("%d followed, %d by the pod, short: %t", len(s.all), len(s.use["greedy"]), s.Short("greedy"))
	}
	mine, others := ID{Namespace: "n", Name: "mine"}, ID{Namespace: "other", Name: "theirs"}
	s.Use("late", map[ID]bool{mine: true})
	s.Use("apart", map[ID]bool{others: true})
	if !s.Short("late") || s.Short("apart") || s.all[mine] != nil || s.all[others] == nil {
		t.Error("who waits for room:", s.short)
	}
	if _, err := s.ConfigMap("n", "mine"); err == nil || !strings.Contains(err.Error(), "one too many") {
		t.Error(err)
	}
	s.Use("greedy", nil)
	mu.Lock()
	if notified["late"] != 1 || notified["apart"] != 0 {
		t.Error("who hears that there is room:", notified)
	}
	mu.Unlock()
	s.Use("late", map[ID]bool{mine: true})
	if s.Short("late") || s.all[mine] == nil {
		t.Error("with room it is not followed")
	}
	s.Use("late", nil)
	s.Use("apart", nil)
	if len(s.all)+len(s.use)+len(s.of)+len(s.short) != 0 {
		t.Errorf("left: %v %v %v %v", s.all, s.use, s.of, s.short)
	}
}
