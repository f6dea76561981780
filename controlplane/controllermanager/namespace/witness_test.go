package namespace

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func podsOf(n int) (cache.Indexer, []*corev1.Pod) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	all := make([]*corev1.Pod, n)
	for i := range all {
		all[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p", i)}}
		_ = indexer.Add(all[i])
	}
	return indexer, all
}

func TestWitnesses(t *testing.T) {
	indexer, all := podsOf(5)
	w := &witnesses{}
	for i, p := range all {
		if !w.remain(indexer, "n") {
			t.Errorf("empty with %d pods left", len(all)-i)
		}
		_ = indexer.Delete(p)
	}
	if w.remain(indexer, "n") || len(w.of) > 0 {
		t.Errorf("not empty at the end: %v", w.of)
	}
}

// BenchmarkLastPod is the cost for each pod of a namespace that goes.
func BenchmarkLastPod(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				indexer, all := podsOf(n)
				w := &witnesses{}
				b.StartTimer()
				for _, p := range all {
					_ = indexer.Delete(p)
					w.remain(indexer, "n")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/pod")
		})
	}
}
