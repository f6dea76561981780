package podstatus

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

func TestPodResources(t *testing.T) {
	two := func(a, b corev1.ResourceRequirements) *corev1.Pod {
		p := podtest.Pod("p", "a", "b")
		p.Spec.Containers[0].Resources, p.Spec.Containers[1].Resources = a, b
		return p
	}
	whole := podtest.Resources("50m", "60Mi", "200m", "100Mi")
	ofPod := two(podtest.Resources("10m", "10Mi", "", ""), corev1.ResourceRequirements{})
	ofPod.Spec.Resources = &whole
	in := Input{Old: &corev1.PodStatus{Phase: corev1.PodRunning, Resources: &whole}}
	in.Resizing = &corev1.PodCondition{Type: corev1.PodResizeInProgress}
	for _, c := range []struct {
		name      string
		in        Input
		pod       *corev1.Pod
		phase     corev1.PodPhase
		allocated string
		resources string
	}{
		{"nothing asked for", Input{}, podtest.Pod("p", "a"), corev1.PodRunning, `{}`, `{}`},
		{"before it runs, what is asked for", Input{}, two(podtest.Resources("10m", "10Mi", "20m", ""), podtest.Resources("1m", "", "", "")), corev1.PodPending,
			`{"cpu":"11m","memory":"10Mi"}`, `{"limits":{"cpu":"20m"},"requests":{"cpu":"11m","memory":"10Mi"}}`},
		{"a limit that one lacks is none of the group", Input{}, two(podtest.Resources("10m", "10Mi", "20m", "20Mi"), podtest.Resources("1m", "", "", "1Mi")), corev1.PodRunning,
			`{"cpu":"11m","memory":"10Mi"}`, `{"limits":{"memory":"21Mi"},"requests":{"cpu":"11m","memory":"10Mi"}}`},
		{"what no group can tell", Input{}, two(podtest.Resources("1m", "", "4m", ""), podtest.Resources("1m", "", "5m", "")), corev1.PodRunning, `{"cpu":"2m"}`, `{}`},
		{"of the pod as a whole", Input{}, ofPod, corev1.PodRunning,
			`{"cpu":"50m","memory":"60Mi"}`, `{"limits":{"cpu":"200m","memory":"100Mi"},"requests":{"cpu":"50m","memory":"60Mi"}}`},
		{"during a resize, those before", in, two(podtest.Resources("1", "", "", ""), corev1.ResourceRequirements{}), corev1.PodRunning,
			`{"cpu":"1"}`, `{"limits":{"cpu":"200m","memory":"100Mi"},"requests":{"cpu":"50m","memory":"60Mi"}}`},
	} {
		in, s := c.in, corev1.PodStatus{Phase: c.phase}
		if in.Pod = c.pod; in.Old == nil {
			in.Old = &corev1.PodStatus{}
		}
		setPodResources(in, &s)
		allocated, _ := json.Marshal(s.AllocatedResources)
		resources, _ := json.Marshal(s.Resources)
		if string(allocated) != c.allocated || string(resources) != c.resources {
			t.Errorf("%s: allocated %s, resources %s", c.name, allocated, resources)
		}
	}
}
