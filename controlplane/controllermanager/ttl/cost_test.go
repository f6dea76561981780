package ttl

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// BenchmarkChangeOfNode is the cost for each change of a node.
func BenchmarkChangeOfNode(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := &reconciler{nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), names: map[string]struct{}{}}
			all := make([]*corev1.Node, n)
			for i := range all {
				all[i] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
				_ = r.nodes.Add(all[i])
				r.count(all[i])
			}
			for b.Loop() {
				r.count(all[0])
				if r.seconds() == "" {
					b.Fatal("no value")
				}
			}
			if len(r.names) != n {
				b.Fatalf("%d nodes", len(r.names))
			}
		})
	}
}
