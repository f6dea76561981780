package podresources

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// TestListAll: pods that have ended are listed where KubeletPodResourcesListUseActivePods is off.
func TestListAll(t *testing.T) {
	pods := func(names ...string) func() []*corev1.Pod {
		return func() (out []*corev1.Pod) {
			for _, name := range names {
				out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
			return out
		}
	}
	for all, want := range map[bool]int{false: 1, true: 2} {
		s := server{c: Config{Pods: pods("runs"), AllPods: pods("runs", "ended"), ListAll: all}}
		list, err := s.List(t.Context(), nil)
		if err != nil || len(list.PodResources) != want {
			t.Errorf("all %v: %v, %v, want %d", all, list, err, want)
		}
		if _, err := s.Get(t.Context(), &api.GetPodResourcesRequest{PodName: "ended"}); err == nil {
			t.Error("a pod that has ended is there")
		}
	}
}
