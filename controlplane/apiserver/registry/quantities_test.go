package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func podWithRequests(quantity string) *corev1.Pod {
	c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(quantity)}}}
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}, c}}}
}

func TestValidateExponents(t *testing.T) {
	if errs := ValidateExponents(podWithRequests("1e999")); len(errs) > 0 {
		t.Error(errs)
	}
	errs := ValidateExponents(podWithRequests("1e1000"))
	if len(errs) != 1 || errs[0].Field != "spec.containers[1].resources.requests[memory]" {
		t.Error(errs)
	}
}

func BenchmarkValidateExponents(b *testing.B) {
	pod := podWithRequests("64Mi")
	b.ReportAllocs()
	for b.Loop() {
		if errs := ValidateExponents(pod); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}
