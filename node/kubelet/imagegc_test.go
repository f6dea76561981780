package kubelet

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
)

// TestOldImagesGo: what nobody has used for imageMaximumGCAge goes though there is room,
// and what a container has stays.
func TestOldImagesGo(t *testing.T) {
	n := newNode(t)
	n.rt.Load("old:1")
	n.rt.Load("late:1")
	n.config = func(c *Config) { c.Settings.ImageMaximumGCAge = metav1.Duration{Duration: time.Hour} }
	n.start()
	n.api.addPod(podtest.Pod("web", "a"))
	n.until("ready", n.ready("web"))
	have := func() (names []string) {
		res, err := n.k.images.ListImages(t.Context(), &cri.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range res.Images {
			names = append(names, i.RepoTags...)
		}
		slices.Sort(names)
		return names
	}
	before := have()
	age := func(by time.Duration, names ...string) {
		if err := n.k.detectImages(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.k.imageUse.mu.Lock()
		for _, name := range names {
			n.k.imageUse.all["sha256:"+name].seen = time.Now().Add(-by)
		}
		n.k.imageUse.mu.Unlock()
		if err := n.k.collectOldImages(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	age(59*time.Minute, "old:1", "late:1", podtest.Image)
	if got := have(); !slices.Equal(got, before) {
		t.Errorf("%v are there, before their age %v", got, before)
	}
	age(time.Hour, "old:1", podtest.Image)
	want := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return name == "old:1" })
	if got := have(); !slices.Equal(got, want) {
		t.Errorf("%v are there, want %v", got, want)
	}
	all := asked(t, n.k, "/metrics")
	if got := total(all["kubelet_image_garbage_collected_total"], "age"); got != 1 {
		t.Errorf("%v images are counted that went for their age, of 1", got)
	}
}

func TestUnusedImages(t *testing.T) {
	now := time.Unix(10000, 0)
	old := now.Add(-time.Hour)
	got := unusedImages(map[string]*imageRecord{
		"pinned": {seen: old, pinned: true}, "used": {seen: old, used: now}, "new": {seen: now},
		"b": {seen: old, used: old.Add(time.Minute)}, "a": {seen: old},
	}, now, 2*time.Minute)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v", got)
	}
}
