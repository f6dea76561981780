package watchcache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
)

// A frame of no event is one for all that are being sent it, and then none.
func TestAcquireFrame(t *testing.T) {
	_, r, _ := start(t)
	rec := must[*Record](t)(r.Create(t.Context(), "ns/a", configMap("ns", "a")))
	d := Delivery{Type: watch.Added, Record: rec}
	one, back, err := r.AcquireFrame(d, JSON)
	if err != nil {
		t.Fatal(err)
	}
	two, backToo, err := r.AcquireFrame(d, JSON)
	if err != nil || &one[0] != &two[0] {
		t.Errorf("a second watcher has a frame of its own, %v", err)
	}
	other, backOther, err := r.AcquireFrame(d, Protobuf)
	if err != nil || &one[0] == &other[0] {
		t.Errorf("another format has the same frame, %v", err)
	}
	back()
	three, backThree, _ := r.AcquireFrame(d, JSON)
	if &three[0] != &one[0] {
		t.Error("a frame that is being sent is made again")
	}
	for _, back := range []func(){backToo, backOther, backThree} {
		back()
	}
	if len(r.sharedFrames.out) != 0 {
		t.Errorf("%d frames are kept for nobody", len(r.sharedFrames.out))
	}
}

// Of large objects only the newest events keep their frames.
func TestLargeFrames(t *testing.T) {
	_, r, _ := start(t)
	for i := range framedLarge + 2 {
		o := configMap("ns", fmt.Sprint(i))
		o.Data = map[string]string{"a": strings.Repeat("x", LargeSize)}
		must[*Record](t)(r.Create(t.Context(), "ns/"+o.Name, o))
	}
	r.mu.RLock()
	events := slices.Clone(r.main.events)
	r.mu.RUnlock()
	for i, e := range events {
		d := Delivery{Type: e.kind(), Record: e.now, event: e}
		one, back, err := r.AcquireFrame(d, Protobuf)
		if err != nil {
			t.Fatal(err)
		}
		back()
		two, back, _ := r.AcquireFrame(d, Protobuf)
		back()
		if kept := &one[0] == &two[0]; kept != (i >= 2) {
			t.Errorf("event %d keeps its frame: %v", i, kept)
		}
	}
}
