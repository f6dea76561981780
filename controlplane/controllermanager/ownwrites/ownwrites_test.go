package ownwrites

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

func pod(name, rv string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: rv}}
}

func TestSeen(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := store.Replace(nil, "5"); err != nil {
		t.Fatal(err)
	}
	l, key := New(), cache.NewObjectName("ns", "owner")
	if !l.Seen(key) {
		t.Fatal("an empty log waits")
	}
	l.Wrote(key, store, pod("a", "7"))
	l.Wrote(key, store, pod("b", "6"))
	if l.Seen(key) {
		t.Error("revision 5 shows revision 7")
	}
	_ = store.Add(pod("b", "6"))
	if l.Seen(key) {
		t.Error("revision 6 shows revision 7")
	}
	_ = store.Add(pod("a", "7"))
	if !l.Seen(key) {
		t.Error("revision 7 does not show revision 7")
	}
	l.Deleted(key, store, pod("a", "7"))
	if l.Seen(key) {
		t.Error("a deleted object still in the cache counts as gone")
	}
	going := pod("a", "8")
	going.DeletionTimestamp = new(metav1.Now())
	_ = store.Update(going)
	if !l.Seen(key) {
		t.Error("an object on its way out is waited for")
	}
}
