package apiserver

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const benchName = "name0000000000"

func benchPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: benchName, Namespace: "default",
			Labels:      map[string]string{"app": "bench", "pod-template-hash": "7d4b9c6f5d", "tier": "backend"},
			Annotations: map[string]string{"example.com/owner": "team-storage", "example.com/revision": "42"},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/app/main:v1.2.3", Args: []string{"serve", "--port=8080"},
				Env: []corev1.EnvVar{
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
					{Name: "LEVEL", Value: "info"}, {Name: "REGION", Value: "north"},
				},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{"memory": resource.MustParse("64Mi")},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app"}},
			}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "app-config"}}}}},
		},
	}
}

// A creation of the pod that `make bench` creates, through all filters, in the
// memory store.
func BenchmarkCreatePod(b *testing.B) {
	s := benchServer(b)
	raw, err := benchPod().Marshal()
	if err != nil {
		b.Fatal(err)
	}
	data, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	body := append([]byte("k8s\x00"), data...)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		own := bytes.Replace(body, []byte(benchName), fmt.Appendf(nil, "name%010d", n), 1)
		r := httptest.NewRequest("POST", "/api/v1/namespaces/default/pods", bytes.NewReader(own))
		r.Header["Authorization"] = []string{"Bearer root"}
		r.Header["Content-Type"] = []string{"application/vnd.kubernetes.protobuf"}
		r.Header["Accept"] = []string{"application/vnd.kubernetes.protobuf"}
		s.Handler().ServeHTTP(nothing{map[string][]string{}}, r)
	}
}
