package kubelet

import (
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
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

// TestThresholdOf100: it has no image go for want of room, unless images go for their age.
func TestThresholdOf100(t *testing.T) {
	for name, c := range map[string]struct {
		age  time.Duration
		high int32
		goes bool
	}{
		"off": {0, 100, false}, "a threshold": {0, 99, true}, "a threshold, with an age": {time.Hour, 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.rt.Load("old:1")
			n.config = func(cfg *Config) {
				cfg.Settings.ImageMaximumGCAge = metav1.Duration{Duration: c.age}
				cfg.Settings.ImageGCHighThresholdPercent = &c.high
			}
			var full atomic.Bool
			n.statfs = func(_ string, s *unix.Statfs_t) error {
				s.Bsize, s.Blocks, s.Bavail, s.Files, s.Ffree = 4096, 1000<<10, 500<<10, 1000, 1000
				if full.Load() {
					s.Bavail = 1
				}
				return nil
			}
			n.start()
			n.until("the first look", func() bool {
				n.k.imageUse.mu.Lock()
				defer n.k.imageUse.mu.Unlock()
				return len(n.k.imageUse.all) > 0
			})
			n.k.imageUse.mu.Lock()
			for _, r := range n.k.imageUse.all {
				r.seen = time.Now().Add(-30 * time.Minute)
			}
			n.k.imageUse.mu.Unlock()
			full.Store(true)
			_ = n.k.imageGC(t.Context()) // which says that there is not enough
			res, err := n.k.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: "old:1"}})
			if err != nil || (res.Image == nil) != c.goes {
				t.Errorf("the image: %v, %v", res.GetImage(), err)
			}
		})
	}
}

func TestUnusedImages(t *testing.T) {
	now := time.Unix(10000, 0)
	old := now.Add(-time.Hour)
	all := map[string]*imageRecord{
		"pinned": {seen: old, pinned: true}, "used": {seen: old, used: now}, "new": {seen: now},
		"b": {seen: old, used: old.Add(time.Minute)}, "a": {seen: old}, "late": {seen: old, used: now.Add(time.Second)},
		"just": {seen: old, used: now.Add(-time.Second)},
	}
	if got := unusedImages(all, now, 2*time.Minute, 0); !slices.Equal(got, []string{"a", "b", "just"}) {
		t.Errorf("for room: %v", got)
	}
	if got := unusedImages(all, now, 2*time.Minute, 2*time.Minute); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("for their age: %v", got)
	}
}

// TestMountedImagesStay: an image that is a volume of a container is in use, however old.
func TestMountedImagesStay(t *testing.T) {
	n := newNode(t)
	n.rt.Load("data:1")
	n.rt.Load("old:1")
	defer n.start()()
	p := podtest.Pod("web", "a")
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data:1", PullPolicy: corev1.PullNever}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	n.api.addPod(p)
	n.until("ready", n.ready("web"))
	if err := n.k.detectImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.k.imageUse.mu.Lock()
	for _, r := range n.k.imageUse.all {
		r.seen = time.Now().Add(-time.Hour)
	}
	n.k.imageUse.mu.Unlock()
	if _, err := n.k.freeImages(t.Context(), math.MaxUint64, time.Now()); err != nil {
		t.Fatal(err)
	}
	res, err := n.k.images.ListImages(t.Context(), &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, i := range res.Images {
		have = append(have, i.RepoTags...)
	}
	if !slices.Contains(have, "data:1") || slices.Contains(have, "old:1") {
		t.Errorf("%v are there", have)
	}
}
