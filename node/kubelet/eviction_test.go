package kubelet

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/podstatus"
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
	if m, err := meminfo(); err != nil || int64(*s.Memory.AvailableBytes+*s.Memory.WorkingSetBytes) != m["MemTotal"] {
		t.Errorf("%d bytes of memory are available and %d worked with, of %d, %v: eviction counts another way", *s.Memory.AvailableBytes, *s.Memory.WorkingSetBytes, m["MemTotal"], err)
	}
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
		n.k.relieve(t.Context(), all, &eviction.State{}, &evicting{})
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

// alwaysShort is the threshold of a node that never has enough disk.
func alwaysShort(t *testing.T, soft bool) []eviction.Threshold {
	t.Helper()
	of := map[string]string{"nodefs.available": "1000Ti"}
	all, err := eviction.Parse(of, nil, nil, nil, false)
	if soft {
		all, err = eviction.Parse(nil, of, map[string]string{"nodefs.available": "1ns"}, nil, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSoftEvictionWaits: while a pod that was evicted has its grace to end, no other goes; the
// next one does when it has ended. Its preStop hook is called.
func TestSoftEvictionWaits(t *testing.T) {
	n := newNode(t)
	n.config = func(c *Config) { c.Settings.EvictionMaxPodGracePeriod = 600 }
	release := n.linger(600, "large", "small")
	n.rt.SetLayer("large", 2<<30)
	n.rt.SetLayer("small", 1<<30)
	soft, state, last := alwaysShort(t, true), &eviction.State{}, &evicting{}
	evicted := func() (names []string) {
		for _, name := range []string{"large", "small"} {
			if n.k.worker(podtest.Pod(name).UID).evicted.Load() != nil {
				names = append(names, name)
			}
		}
		return names
	}
	for range 2 { // the first time it has been short for no time at all
		n.k.relieve(t.Context(), soft, state, last)
	}
	n.until("the first one ends", n.sent("Killing: Stopping container large"))
	for range 3 {
		n.k.relieve(t.Context(), soft, state, last)
	}
	if got := evicted(); !slices.Equal(got, []string{"large"}) {
		t.Fatalf("evicted %v", got)
	}
	release("large")
	n.until("the first one has ended", func() bool { return n.k.worker("uid-large").shown.Load().ended })
	n.k.relieve(t.Context(), soft, state, last)
	if got := evicted(); !slices.Equal(got, []string{"large", "small"}) {
		t.Errorf("evicted %v", got)
	}
}

// TestEvictedIsAwaited: a pod that was evicted is waited for as long as its grace and half of
// it, and its volumes half a minute more, or until it has ended; a hard threshold does not
// wait for the grace of a soft one.
func TestEvictedIsAwaited(t *testing.T) {
	hard, soft := alwaysShort(t, false)[0], alwaysShort(t, true)[0]
	w := &worker{}
	for _, c := range []struct {
		grace   int64
		ended   bool
		after   time.Duration
		awaited bool
		urgent  int // of a hard and a soft threshold
	}{
		{1, false, 39 * time.Second, true, 0}, {1, false, 41 * time.Second, false, 2}, {1, true, 0, false, 2},
		{600, false, 929 * time.Second, true, 1}, {600, false, 931 * time.Second, false, 2}, {1 << 62, false, 24 * time.Hour, true, 1},
	} {
		w.shown.Store(&shown{ended: c.ended})
		e, at := evictingNow(c.grace, w), time.Now().Add(c.after)
		if got := e.awaited(at); got != c.awaited {
			t.Errorf("%+v: awaited %t", c, got)
		}
		if got := e.urgent(at, []eviction.Threshold{hard, soft}); len(got) != c.urgent || c.urgent > 0 && got[0] != hard {
			t.Errorf("%+v: urgent %v", c, got)
		}
	}
}

// TestEvictionGrace: what is evicted has a second at least, in which its preStop hooks are called.
func TestEvictionGrace(t *testing.T) {
	hard, soft := alwaysShort(t, false)[0], alwaysShort(t, true)[0]
	for _, c := range []struct {
		t    eviction.Threshold
		most int32
		own  *int64
		want int64
	}{
		{hard, 600, new(int64(30)), 1}, {soft, 0, new(int64(30)), 1}, {soft, 20, new(int64(30)), 20}, {soft, 600, new(int64(30)), 30},
		{soft, 600, new(int64(0)), 1}, {soft, 600, nil, 600}, {soft, -1, new(int64(30)), 30}, {soft, -1, nil, 1},
	} {
		k := &Kubelet{cfg: Config{Settings: &configuration.Settings{EvictionMaxPodGracePeriod: c.most}}}
		p := podtest.Pod("p", "c")
		p.Spec.TerminationGracePeriodSeconds = c.own
		if got := k.evictionGrace(c.t, p); got != c.want {
			t.Errorf("at most %d: %d s, want %d", c.most, got, c.want)
		}
	}
}

// TestCrashLoopingPodIsEvicted: the pod that fills the disk goes for it also while none of its
// containers runs, whether by what they wrote or for its own limit.
func TestCrashLoopingPodIsEvicted(t *testing.T) {
	for name, limit := range map[string]string{"nodefs": "", "its limit": "1Gi"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.start()
			p := podtest.Pod("filler", "filler")
			if limit != "" {
				p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
			}
			n.api.addPod(p)
			n.api.addPod(podtest.Pod("small", "small"))
			n.until("the pods", func() bool { return n.ready("filler")() && n.ready("small")() })
			n.rt.SetLayer("filler", 2<<30)
			n.rt.SetLayer("small", 1<<20)
			for range 2 {
				n.until("it runs", func() bool { return slices.Contains(n.rt.Running(), "filler") })
				n.rt.Exit("filler", 1)
			}
			n.until("backing off", func() bool {
				s := n.api.pod("filler").Status.ContainerStatuses[0]
				return s.RestartCount == 1 && s.State.Waiting != nil
			})
			if limit != "" {
				n.k.enforceLimits(t.Context())
			} else {
				n.k.relieve(t.Context(), alwaysShort(t, false), &eviction.State{}, &evicting{})
			}
			n.until("evicted", func() bool { return n.api.pod("filler").Status.Reason == "Evicted" })
			if got := n.rt.Running(); !slices.Equal(got, []string{"small"}) {
				t.Errorf("running %v", got)
			}
		})
	}
}

// TestEndingPodIsEvicted: of a pod that takes most and takes its time to end the node takes that
// time away, rather than that another goes: for a hard threshold, if a soft one gave it or
// somebody deleted it.
func TestEndingPodIsEvicted(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		n := newNode(t)
		n.config = func(c *Config) { c.Settings.EvictionMaxPodGracePeriod = 600 }
		n.linger(600, "large", "small")
		n.rt.SetLayer("large", 2<<30)
		n.rt.SetLayer("small", 1<<30)
		state, last := &eviction.State{}, &evicting{}
		if deleted {
			n.api.deletePodWithin("large", 600)
		} else {
			for range 2 {
				n.k.relieve(t.Context(), alwaysShort(t, true), state, last)
			}
		}
		n.until("it ends", n.sent("Killing: Stopping container large"))
		n.k.relieve(t.Context(), alwaysShort(t, false), state, last)
		n.until("it has ended", func() bool { return slices.Equal(n.rt.Running(), []string{"small"}) })
		if w := n.k.worker("uid-small"); w.evicted.Load() != nil {
			t.Errorf("deleted %t: the other one goes too", deleted)
		}
		if got := total(asked(t, n.k, "/metrics")["kubelet_evictions"], ""); got != 1 {
			t.Errorf("deleted %t: %v evictions", deleted, got)
		}
	}
}

// TestDeletedPodShowsEviction: a pod that somebody had deleted before the node evicts it shows
// that it was, unless all its containers ended well; one that has ended shows how.
func TestDeletedPodShowsEviction(t *testing.T) {
	for name, c := range map[string]struct {
		code   int32
		phase  corev1.PodPhase
		reason string
	}{
		"killed": {137, corev1.PodFailed, "Evicted"}, "heeds SIGTERM": {0, corev1.PodSucceeded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.rt.StopCode = c.code
			var cleans atomic.Bool
			n.rt.Fail = func(method string) error { // so that the object stays until then
				if method == "StopPodSandbox" && !cleans.Load() {
					return status.Error(codes.Unknown, "not yet")
				}
				return nil
			}
			n.linger(600, "p")
			n.api.deletePodWithin("p", 600)
			n.until("it ends", n.sent("Killing: Stopping container p"))
			w := n.k.worker("uid-p")
			n.k.evict(w, w.shown.Load().pod, "nodefs.available", "The node was low.", nil, hardGrace, corev1.PodReasonTerminationByKubelet)
			n.until("it has ended", func() bool { return n.api.pod("p").Status.Phase == c.phase })
			s := n.api.pod("p").Status
			d := podstatus.FindCondition(s.Conditions, corev1.DisruptionTarget)
			if s.Reason != c.reason || d == nil || d.Reason != corev1.PodReasonTerminationByKubelet || d.Message != "The node was low." {
				t.Errorf("reason %q, condition %+v", s.Reason, d)
			}
			if want := map[string]string{"Evicted": "The node was low."}[c.reason]; s.Message != want {
				t.Errorf("message %q", s.Message)
			}
			w.end(&ending{reason: "Terminated", message: "too late"})
			n.k.pokePod("uid-p")
			cleans.Store(true)
			n.until("it is gone", func() bool {
				p := n.api.pod("p")
				if p != nil && p.Status.Reason != c.reason {
					t.Fatalf("reason %q", p.Status.Reason)
				}
				return p == nil
			})
		})
	}
}

// TestLateEndingIsIgnored: a pod whose containers have all ended keeps why; so does one whose
// end had a reason, and one that is not taken after all does not show that.
func TestLateEndingIsIgnored(t *testing.T) {
	evicted := &ending{reason: "Evicted", message: "low", grace: new(int64(1)), disruption: corev1.PodReasonTerminationByKubelet}
	for name, c := range map[string]struct {
		state     cri.ContainerState
		phase     corev1.PodPhase
		was, then ending
		reason    string
	}{
		"runs": {podtest.Running, corev1.PodRunning, ending{}, *evicted, "Evicted"}, "ended": {podtest.Exited, corev1.PodRunning, ending{}, *evicted, ""},
		"failed before": {podtest.Running, corev1.PodFailed, ending{}, *evicted, ""}, "has one": {podtest.Running, corev1.PodRunning, ending{reason: "DeadlineExceeded"}, *evicted, "DeadlineExceeded"},
		"rejected": {podtest.Running, corev1.PodRunning, ending{}, ending{reason: "UnexpectedAdmissionError", rejected: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := podtest.Pod("p", "c")
			p.DeletionGracePeriodSeconds = new(int64(600))
			w := newWorker(admitting(t), p)
			w.pod, w.observed, w.ended = p, podtest.Observed(podtest.Container("c", c.state, 0)), &c.was
			w.shown.Store(&shown{pod: p, status: &corev1.PodStatus{Phase: c.phase}})
			w.hasten(&c.then)
			if w.ended.reason != c.reason {
				t.Errorf("reason %q, want %q", w.ended.reason, c.reason)
			}
		})
	}
}

// TestWhatAnEndFrees: a pod without a running container has no processes, but may have files, in
// memory too.
func TestWhatAnEndFrees(t *testing.T) {
	plain, tmpfs := podtest.Pod("p", "c"), podtest.Pod("p", "c")
	tmpfs.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	for _, c := range []struct {
		pod   *corev1.Pod
		state cri.ContainerState
		name  corev1.ResourceName
		usage int64
		want  bool
	}{
		{plain, podtest.Running, corev1.ResourceMemory, 0, true}, {plain, podtest.Running, resourcePIDs, 1, true}, {plain, podtest.Running, corev1.ResourceEphemeralStorage, 0, true},
		{plain, podtest.Exited, corev1.ResourceMemory, 1, false}, {tmpfs, podtest.Exited, corev1.ResourceMemory, 1, true}, {tmpfs, podtest.Exited, corev1.ResourceMemory, 0, false},
		{tmpfs, podtest.Exited, resourcePIDs, 1, false}, {plain, podtest.Exited, corev1.ResourceEphemeralStorage, 1, true}, {plain, podtest.Exited, resourceInodes, 0, false},
	} {
		if got := frees(&shown{pod: c.pod, observed: podtest.Observed(podtest.Container("c", c.state, 0))}, c.name, c.usage); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
