package kubelet

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/podtest"
)

func TestRank(t *testing.T) {
	low, high := podtest.Pod("low", "c"), podtest.Pod("high", "c")
	low.Spec.Priority, high.Spec.Priority = new(int32(0)), new(int32(10))
	all := []candidate{{pod: podtest.Pod("within", "c"), usage: 1, req: 2}, {pod: high, usage: 9, req: 1}, {pod: low, usage: 3, req: 1}}
	rank(all)
	if all[0].pod.Name != "low" || all[1].pod.Name != "high" || all[2].pod.Name != "within" {
		t.Errorf("%s %s %s", all[0].pod.Name, all[1].pod.Name, all[2].pod.Name)
	}
}

// TestContainerFs: where the runtime says that containers write to another disk than that
// of images, that disk is what statistics show and signals are read of.
func TestContainerFs(t *testing.T) {
	n := newNode(t)
	n.rt.ContainerDir = "/proc" // is always mounted, has no room, and counts no files
	n.start()
	n.api.addPod(podtest.Pod("p", "p"))
	n.until("the pod", n.ready("p"))
	if l := n.k.layout(); l != eviction.Split {
		t.Errorf("layout %v", l)
	}
	seen := n.k.observe([]eviction.Threshold{{Signal: eviction.ImageFsAvailable}, {Signal: eviction.ContainerFsAvailable}})
	if seen[eviction.ImageFsAvailable].All == 0 || seen[eviction.ContainerFsAvailable].All != 0 {
		t.Errorf("seen %v", seen)
	}
	s := n.k.nodeStats(metav1.NewTime(time.Now()), false)
	if *s.Runtime.ImageFs.CapacityBytes == 0 || *s.Runtime.ContainerFs.CapacityBytes != 0 {
		t.Errorf("images on %d bytes, containers on %d", *s.Runtime.ImageFs.CapacityBytes, *s.Runtime.ContainerFs.CapacityBytes)
	}
}

// TestNothingToEvictIsLogged: a node that is short of something and has no pod to evict says
// so, and of which signals nothing is known, each once.
func TestNothingToEvictIsLogged(t *testing.T) {
	log := takeLog(t)
	n := newNode(t)
	n.rt.ContainerDir = "/no/such/directory"
	n.start()
	n.until("the start", func() bool { return n.k.runtimeUp.Load() })
	all, errs := eviction.Parse(map[string]string{"nodefs.available": "1000Ti", "containerfs.available": "1"}, nil, nil, nil, false)
	if errs != nil {
		t.Fatal(errs)
	}
	for range 3 {
		n.k.relieve(t.Context(), all, &eviction.State{})
	}
	for _, want := range [][]string{
		{"Eviction manager: unable to evict any pods from the node", "signal=nodefs.available"},
		{"Eviction manager: no observation found for eviction signal", "signal=containerfs.available"},
	} {
		if got := log.count(append(want, "level=WARN")...); got != 1 {
			t.Errorf("%q: %d lines", want, got)
		}
	}
}
