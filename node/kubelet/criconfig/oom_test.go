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

// TestScores: what is critical for the node, sidecars, and requests of the pod as a whole.
func TestScores(t *testing.T) {
	pod := func(requests ...string) *corev1.Pod {
		p := podtest.Pod("p", "a", "b")
		for i, r := range requests {
			p.Spec.Containers[i].Resources = podtest.Resources("", r, "", "")
		}
		return p
	}
	sidecar := func(request string, p *corev1.Pod) *corev1.Pod {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Resources: podtest.Resources("", request, "", "")}}
		return p
	}
	whole := func(request string, p *corev1.Pod) *corev1.Pod {
		p.Spec.Resources = new(podtest.Resources("", request, "", ""))
		return p
	}
	critical := func(class string, p *corev1.Pod) *corev1.Pod {
		p.Spec.PriorityClassName, p.Spec.Priority = class, new(int32(podspec.SystemCritical))
		return p
	}
	pretender := critical("system-node-critical", pod())
	pretender.Spec.Priority = nil
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want []int64 // of the containers, then of the sidecar
	}{
		"critical for the node":     {critical("system-node-critical", pod()), []int64{-997, -997}},
		"critical for the cluster":  {critical("system-cluster-critical", pod("1Gi", "2Gi")), []int64{750, 500}},
		"of that class, without it": {pretender, []int64{1000, 1000}},
		"requests too much":         {pod("4Gi", "1Ki"), []int64{3, 999}},
		"a sidecar of less":         {sidecar("512Mi", pod("1Gi", "2Gi")), []int64{750, 500, 750}},
		"a sidecar of more":         {sidecar("3Gi", pod("1Gi", "2Gi")), []int64{750, 500, 250}},
		"the pod requests more":     {whole("2Gi", pod("1Gi", "0")), []int64{625, 875}},
		"and has a sidecar":         {sidecar("0", whole("3Gi", pod("1Gi", "512Mi"))), []int64{625, 750, 750}},
	} {
		for i, want := range c.want {
			container := append(c.pod.Spec.Containers[:2:2], c.pod.Spec.InitContainers...)[i]
			if got := oomScore(c.pod, &container, 4<<30); got != want {
				t.Errorf("%s: container %s has %d, want %d", name, container.Name, got, want)
			}
		}
	}
}
