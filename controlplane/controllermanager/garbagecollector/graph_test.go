package garbagecollector

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// TestThousandsOfOwners: an object of a megabyte names sixty thousand owners. Changes of it
// are not compared pair by pair while all wait for the graph.
func TestThousandsOfOwners(t *testing.T) {
	const many = 60_000
	res := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	g := newGraph(&kinds{})
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "o", UID: "o"}}
	show := func(from, to int, blocks bool) []types.UID {
		o.OwnerReferences = nil
		for i := from; i < to; i++ {
			o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: "x/v1", Kind: "Y", Name: "y", UID: types.UID(fmt.Sprint(i)), BlockOwnerDeletion: new(blocks)})
		}
		return g.upsert(res, o.DeepCopy(), false)
	}
	show(0, many, true)
	show(0, many, true)
	if len(g.nodes) != many+1 {
		t.Fatalf("%d nodes", len(g.nodes))
	}
	// Half of them are not its owners any more, and none is blocked.
	if again := show(many/2, many, false); len(again) < many {
		t.Errorf("%d owners to decide about, want all that were blocked", len(again))
	}
	if len(g.nodes) != many/2+1 {
		t.Errorf("%d nodes after half of the owners went", len(g.nodes))
	}
	if left := without(o.OwnerReferences, ids(many/2, many-1)); len(left) != 1 || left[0].UID != types.UID(fmt.Sprint(many-1)) {
		t.Errorf("%d references are left", len(left))
	}
	if g.remove("o", true); len(g.nodes) != 0 {
		t.Errorf("%d nodes are left", len(g.nodes))
	}
}

func ids(from, to int) (list []types.UID) {
	for i := from; i < to; i++ {
		list = append(list, types.UID(fmt.Sprint(i)))
	}
	return list
}
