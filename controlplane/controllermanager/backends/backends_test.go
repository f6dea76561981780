package backends

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func service(namespace, name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Selector: selector}}
}

func pod(labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: labels}}
}

func indexed(t testing.TB, services ...*corev1.Service) cache.Indexer {
	in := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{bySelector: selectorKeys})
	for _, s := range services {
		if err := in.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// TestSelecting: which Services a pod is behind.
func TestSelecting(t *testing.T) {
	elsewhere := service("a", "elsewhere", map[string]string{"app": "web"})
	elsewhere.Spec.Type = corev1.ServiceTypeExternalName
	in := indexed(t, elsewhere, service("a", "web", map[string]string{"app": "web"}), service("a", "blue", map[string]string{"app": "web", "colour": "blue"}),
		service("a", "all", map[string]string{}), service("a", "none", nil), service("b", "web", map[string]string{"app": "web"}),
		service("a", "empty", map[string]string{"app": ""}))
	for want, labels := range map[string]map[string]string{
		"[all]":          nil,
		"[all web]":      {"app": "web", "colour": "red", "more": "x"},
		"[all blue web]": {"app": "web", "colour": "blue"},
		"[all empty]":    {"app": "", "colour": "blue"},
	} {
		var got []string
		for _, key := range selecting(in, pod(labels)) {
			got = append(got, key.Name)
		}
		slices.Sort(got)
		if fmt.Sprint(got) != want {
			t.Errorf("%v: %v, want %s", labels, got, want)
		}
	}
}

// BenchmarkSelecting is one pod's event in a namespace of many Services.
func BenchmarkSelecting(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var all []*corev1.Service
			for i := range n {
				all = append(all, service("a", fmt.Sprint("s", i), map[string]string{"app": fmt.Sprint("app", i), "tier": "x"}))
			}
			in, p := indexed(b, all...), pod(map[string]string{"app": "app3", "tier": "x", "hash": "1"})
			b.ReportAllocs()
			for b.Loop() {
				if len(selecting(in, p)) != 1 {
					b.Fatal("not found")
				}
			}
		})
	}
}
