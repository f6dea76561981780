package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/podtest"
)

func TestDownward(t *testing.T) {
	p := podtest.Pod("p", "c")
	p.Labels = map[string]string{"b": "2", "a": `"1"`}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
	d := &Downward{pod: p, ips: []string{"1.1.1.1", "::1"}, allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	for path, want := range map[string]string{
		"metadata.name": "p", "metadata.labels['b']": "2", "metadata.labels": "a=\"\\\"1\\\"\"\nb=\"2\"", "status.podIPs": "1.1.1.1,::1",
	} {
		if got, err := d.Field(path); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", path, got, err, want)
		}
	}
	for res, want := range map[string]string{"limits.cpu": "2", "limits.memory": "1073741824", "requests.cpu": "0"} {
		if got, err := d.Resource("c", &corev1.ResourceFieldSelector{Resource: res}); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", res, got, err, want)
		}
	}
	if got, _ := d.Resource("c", &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")}); got != "1500" {
		t.Errorf("limits.cpu in millicores: %s", got)
	}
}
