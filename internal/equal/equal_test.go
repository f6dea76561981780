package equal_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"knarr/internal/equal"
)

func pod(change func(*corev1.Pod)) *corev1.Pod {
	at := metav1.Unix(1e9, 0)
	seconds := int64(30)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}, CreationTimestamp: at, DeletionTimestamp: &at},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &seconds,
			NodeSelector:                  map[string]string{},
			Containers: []corev1.Container{{
				Name: "c", Args: []string{"x"},
				Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1000m")}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}},
			}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestAsSemanticEquality(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"nothing":                nil,
		"nil for empty map":      func(p *corev1.Pod) { p.Spec.NodeSelector = nil },
		"empty for nil list":     func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{} },
		"quantity in other form": func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1") },
		"time in other zone":     func(p *corev1.Pod) { p.CreationTimestamp.Time = p.CreationTimestamp.In(time.FixedZone("x", 3600)) },
		"other quantity":         func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("2") },
		"other time":             func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(2e9, 0) },
		"no time":                func(p *corev1.Pod) { p.DeletionTimestamp = nil },
		"other label":            func(p *corev1.Pod) { p.Labels["a"] = "c" },
		"label of another name":  func(p *corev1.Pod) { p.Labels = map[string]string{"c": "b"} },
		"one more label":         func(p *corev1.Pod) { p.Labels["c"] = "" },
		"other item":             func(p *corev1.Pod) { p.Spec.Containers[0].Args[0] = "y" },
		"one more item":          func(p *corev1.Pod) { p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "y") },
		"other port":             func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe.HTTPGet.Port = intstr.FromString("80") },
		"no probe":               func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = nil },
		"other number":           func(p *corev1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 31 },
		"other truth":            func(p *corev1.Pod) { p.Spec.HostNetwork = true },
	} {
		a, b := pod(nil), pod(change)
		want := equality.Semantic.DeepEqual(a, b)
		if got := equal.Objects(a, b); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if exact := equal.Exact(reflect.TypeFor[corev1.Pod]()); exact(unsafe.Pointer(a), unsafe.Pointer(b)) && !sameJSON(t, a, b) {
			t.Errorf("%s: exactly the same with other JSON", name)
		}
		if got := equal.Objects(b.Spec, a.Spec); got != equality.Semantic.DeepEqual(b.Spec, a.Spec) {
			t.Errorf("%s, spec alone: %v", name, got)
		}
	}
	a, b := pod(nil), pod(nil)
	if exact := equal.Exact(reflect.TypeFor[corev1.Pod]()); !exact(unsafe.Pointer(a), unsafe.Pointer(b)) {
		t.Error("a copy is not exactly the same")
	}
	if equal.Objects(pod(nil), nil) || !equal.Objects(nil, nil) || equal.Objects(corev1.Pod{}, corev1.Node{}) {
		t.Error("nothing, or another type, is not the same")
	}
}

func sameJSON(t *testing.T, a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x, y)
}

func BenchmarkObjects(b *testing.B) {
	x, y := pod(nil), pod(nil)
	b.Run("same", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !equal.Objects(x, y) {
				b.Fatal("differ")
			}
		}
	})
	b.Run("semantic", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !equality.Semantic.DeepEqual(x, y) {
				b.Fatal("differ")
			}
		}
	})
}
