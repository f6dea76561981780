package kubelet

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/podtest"
)

// TestFreeEnded: where a disk is short, what is left of pods that have ended goes first;
// those that run stay, and so does what the API shows of the others.
func TestFreeEnded(t *testing.T) {
	n := newNode(t)
	n.start()
	done := podtest.Pod("done", "done")
	done.Spec.RestartPolicy = corev1.RestartPolicyNever
	n.api.addPod(done)
	n.api.addPod(podtest.Pod("runs", "runs"))
	n.until("both run", func() bool { return n.ready("done")() && n.ready("runs")() })
	n.rt.Exit("done", 0)
	n.until("one has ended", func() bool {
		w := n.k.worker("uid-done")
		return n.api.pod("done").Status.Phase == corev1.PodSucceeded && w != nil && w.shown.Load().ended
	})
	before := n.api.pod("done").Status.ContainerStatuses
	if !n.k.makeSpace(t.Context(), eviction.TakesOf(eviction.NodeFsAvailable, eviction.Together), n.k.began) {
		t.Error("there is nothing to look at")
	}
	n.until("nothing is left of it", func() bool {
		w := n.k.worker("uid-done").shown.Load()
		return len(w.observed.Containers)+len(w.observed.Sandboxes) == 0
	})
	if s := n.api.pod("done").Status; s.Phase != corev1.PodSucceeded || !reflect.DeepEqual(s.ContainerStatuses, before) {
		t.Errorf("was %v, is %v", before, s)
	}
	if running := n.rt.Running(); len(running) != 1 || running[0] != "runs" {
		t.Errorf("%v run", running)
	}
}

// TestWhatMakesSpace: where images have a disk of their own, ended containers make room
// there, and neither does where logs are short.
func TestWhatMakesSpace(t *testing.T) {
	n := newNode(t)
	n.start()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	for _, c := range []struct {
		signal string
		layout eviction.Layout
		want   bool
	}{
		{eviction.NodeFsAvailable, eviction.ImagesApart, false}, {eviction.ImageFsAvailable, eviction.ImagesApart, true},
		{eviction.ContainerFsAvailable, eviction.Split, true}, {eviction.ImageFsAvailable, eviction.Split, true},
	} {
		if got := n.k.makeSpace(t.Context(), eviction.TakesOf(c.signal, c.layout), n.k.began); got != c.want {
			t.Errorf("%s with %v: %v", c.signal, c.layout, got)
		}
	}
}

// TestEvictedOnce: a pod that was told to end is not evicted anew while it ends.
func TestEvictedOnce(t *testing.T) {
	n := newNode(t)
	n.start()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	evict := func() *worker {
		return n.k.evictOne(t.Context(), signals[0], eviction.Threshold{}, eviction.Observation{Available: 1, All: 2})
	}
	if w := evict(); w == nil || w.uid != "uid-p" {
		t.Errorf("evicted %v", w)
	}
	if w := evict(); w != nil {
		t.Errorf("evicted again: %v", w.uid)
	}
}
