package nodeevents

import (
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func node(name, id string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: id}}
}

func id(n *corev1.Node) string { return n.Spec.ProviderID }

func TestSource(t *testing.T) {
	inf := cache.NewSharedIndexInformer(nil, &corev1.Node{}, 0, cache.Indexers{})
	keys := Source(inf, id).Keys
	event := func(n *corev1.Node, want int) {
		t.Helper()
		if got := keys(n); len(got) != want || want == 1 && got[0] != n.Name {
			t.Errorf("%v, want %d", got, want)
		}
	}
	first := node("a", "")
	if err := inf.GetIndexer().Add(first); err != nil {
		t.Fatal(err)
	}
	event(first, 1)
	event(first, 0)
	second := node("a", "x")
	if err := inf.GetIndexer().Update(second); err != nil {
		t.Fatal(err)
	}
	event(first, 1) // of an update both are shown, and the store has the newer one
	event(second, 0)
	if err := inf.GetIndexer().Delete(second); err != nil {
		t.Fatal(err)
	}
	event(second, 1)
	if err := inf.GetIndexer().Add(second); err != nil {
		t.Fatal(err)
	}
	event(second, 1)
}

// BenchmarkSource is an event that does not matter, of one of 5,000 nodes.
func BenchmarkSource(b *testing.B) {
	inf := cache.NewSharedIndexInformer(nil, &corev1.Node{}, 0, cache.Indexers{})
	keys := Source(inf, id).Keys
	var nodes []*corev1.Node
	for i := range 5000 {
		n := node(strconv.Itoa(i), "x")
		if err := inf.GetIndexer().Add(n); err != nil {
			b.Fatal(err)
		}
		keys(n)
		nodes = append(nodes, n)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if keys(nodes[i%len(nodes)]) != nil {
			b.Fatal("a key")
		}
	}
}
