package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodGrace(t *testing.T) {
	running := corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: new(int64(30))}}
	unscheduled, failed := *running.DeepCopy(), *running.DeepCopy()
	unscheduled.Spec.NodeName = ""
	failed.Status.Phase = corev1.PodFailed
	for name, c := range map[string]struct {
		pod  corev1.Pod
		asks *int64
		want int64
	}{
		"the pod's own":    {running, nil, 30},
		"asked":            {running, new(int64(5)), 5},
		"forced":           {running, new(int64(0)), 0},
		"negative":         {running, new(int64(-1)), 1},
		"no node":          {unscheduled, new(int64(5)), 0},
		"already finished": {failed, nil, 0},
	} {
		if got := pods.GraceSeconds(&c.pod, &metav1.DeleteOptions{GracePeriodSeconds: c.asks}); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestPodFields(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}, Spec: corev1.PodSpec{NodeName: "n"}}
	set := pods.FieldSet(p)
	for label, want := range map[string]string{"metadata.name": "a", "metadata.namespace": "b", "spec.nodeName": "n", "spec.hostNetwork": "false", "status.phase": ""} {
		if got, ok := set[label]; !ok || got != want {
			t.Errorf("%s: %q %v", label, got, ok)
		}
	}
	if len(pods.FieldLabels()) != len(set) {
		t.Errorf("labels %v, set %v", pods.FieldLabels(), set)
	}
}

func TestPullPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"nginx": corev1.PullAlways, "nginx:latest": corev1.PullAlways, "a:5000/nginx": corev1.PullAlways,
		"nginx:1": corev1.PullIfNotPresent, "a:5000/nginx:1": corev1.PullIfNotPresent, "nginx@sha256:x": corev1.PullIfNotPresent,
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%s: %s", image, got)
		}
	}
}

// A pod that would have a negative time to end has one second; a template keeps what it has.
func TestNegativeGracePeriod(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(-1))}}
	template := &corev1.PodTemplateSpec{Spec: *p.Spec.DeepCopy()}
	defaultPod(p)
	defaultTemplate(template)
	if *p.Spec.TerminationGracePeriodSeconds != 1 || *template.Spec.TerminationGracePeriodSeconds != -1 {
		t.Error(*p.Spec.TerminationGracePeriodSeconds, *template.Spec.TerminationGracePeriodSeconds)
	}
}
