package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
)

func TestQOSAndScore(t *testing.T) {
	for _, c := range []struct {
		r     corev1.ResourceRequirements
		want  corev1.PodQOSClass
		score int64
	}{
		{podtest.Resources("", "", "", ""), corev1.PodQOSBestEffort, 1000},
		{podtest.Resources("1", "1Gi", "1", "1Gi"), corev1.PodQOSGuaranteed, -997},
		{podtest.Resources("1", "1Gi", "", ""), corev1.PodQOSBurstable, 750},
		{podtest.Resources("1", "", "2", ""), corev1.PodQOSBurstable, 999},
	} {
		p := podtest.Pod("p", "c")
		p.Spec.Containers[0].Resources = c.r
		if got := podspec.ComputeQOS(p); got != c.want {
			t.Errorf("%v: %s, want %s", c.r, got, c.want)
		}
		if got := oomScore(p, &p.Spec.Containers[0], 4<<30); got != c.score {
			t.Errorf("%v: score %d, want %d", c.r, got, c.score)
		}
	}
}
