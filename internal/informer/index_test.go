package informer_test

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

// TestIndex: an object at which an index's function panics or fails is in the cache, and
// those that come with it are found by the index.
func TestIndex(t *testing.T) {
	in := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	err := informer.Index(in, cache.Indexers{"node": func(o any) ([]string, error) {
		switch p := o.(*corev1.Pod); p.Name {
		case "panics":
			panic("at a field that is not there")
		case "fails":
			return []string{"n"}, errors.New("no key")
		default:
			return []string{p.Spec.NodeName}, nil
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	var all []any
	for _, name := range []string{"a", "panics", "fails", "b"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
		p.Spec.NodeName = "n"
		all = append(all, p)
	}
	if err := in.Replace(all, "1"); err != nil {
		t.Fatal(err)
	}
	found, err := in.IndexKeys("node", "n")
	if slices.Sort(found); err != nil || !slices.Equal(found, []string{"ns/a", "ns/b"}) {
		t.Errorf("%v, %v", found, err)
	}
	if len(in.List()) != 4 {
		t.Errorf("%d objects are kept", len(in.List()))
	}
	if err := in.Delete(all[1]); err != nil || len(in.List()) != 3 {
		t.Errorf("%d objects after one is gone, %v", len(in.List()), err)
	}
}
