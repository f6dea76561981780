package nodeipam

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/apitest"
)

// TestNodeMadeAnew deletes a node and makes another of its name before the
// controller looks again: it never sees that the name was not there.
func TestNodeMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		api := s.Client(t).CoreV1().Nodes()
		p, err := newPool(netip.MustParsePrefix("10.42.0.0/16"), 24)
		if err != nil {
			t.Fatal(err)
		}
		r := &reconciler{nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), client: s.Client(t), pools: []*pool{p}, given: map[string]grant{}, shown: map[string][]netip.Prefix{}}
		for range 2 {
			made, err := api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.nodes.Update(made); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second look is at a cache that does not show the write
				if _, err := r.reconcile(t.Context(), cache.ObjectName{Name: "n"}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := api.Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got.UID != made.UID || len(got.Spec.PodCIDRs) != 1 {
				t.Errorf("node %s has ranges %v, want one", got.UID, got.Spec.PodCIDRs)
			}
			if err := api.Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// BenchmarkJoin is the cost of a range for each node that joins.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				p, err := newPool(netip.MustParsePrefix("10.0.0.0/8"), 24)
				if err != nil {
					b.Fatal(err)
				}
				r := &reconciler{nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), pools: []*pool{p}, given: map[string]grant{}, shown: map[string][]netip.Prefix{}}
				for i := range n {
					ranges, err := r.free()
					if err != nil {
						b.Fatal(err)
					}
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: corev1.NodeSpec{PodCIDRs: []string{ranges[0].String()}}}
					_ = r.nodes.Add(node)
					r.show(node)
				}
				if len(p.used) != n {
					b.Fatalf("%d parts used", len(p.used))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/node")
		})
	}
}
