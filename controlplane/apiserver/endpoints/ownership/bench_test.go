package ownership

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func benchPod() *corev1.Pod {
	grace := int64(30)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "default", Labels: map[string]string{"app": "web", "tier": "front"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "app", Image: "example.com/app:1",
				Ports:     []corev1.ContainerPort{{ContainerPort: 8080, Protocol: "TCP"}},
				Env:       []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}},
			}},
			RestartPolicy: "Always", DNSPolicy: "ClusterFirst", SchedulerName: "default-scheduler", ServiceAccountName: "default",
			TerminationGracePeriodSeconds: &grace, SecurityContext: &corev1.PodSecurityContext{},
		},
	}
}

// BenchmarkCreate is what a pod's creation costs here.
func BenchmarkCreate(b *testing.B) {
	p := benchPod()
	q := Request{Old: &corev1.Pod{}, Obj: p, Creating: true, Manager: "bench", APIVersion: "v1", Now: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		Update(q)
	}
}

// BenchmarkUpdate is what a label that changes costs here.
func BenchmarkUpdate(b *testing.B) {
	old, p := benchPod(), benchPod()
	old.ManagedFields = Update(Request{Old: &corev1.Pod{}, Obj: old, Creating: true, Manager: "bench", APIVersion: "v1", Now: time.Now()})
	p.Labels["app"] = "db"
	q := Request{Old: old, Obj: p, Live: old.ManagedFields, Manager: "other", APIVersion: "v1", Now: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		Update(q)
	}
}
