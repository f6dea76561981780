package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

// TestPreStopOutlivesGrace: a hook that does not end in time has what is left of its
// container's life, as upstream's has; one that ends early lets that end at once.
func TestPreStopOutlivesGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var ended time.Duration
		cancel, err := preStop(t.Context(), newStopTime(30), func(ctx context.Context) error {
			<-ctx.Done()
			ended = time.Since(began)
			return ctx.Err()
		})
		if waited := time.Since(began); waited != 30*time.Second || err != nil {
			t.Errorf("the container is told to end after %v: %v", waited, err)
		}
		time.Sleep(minGrace * time.Second)
		synctest.Wait()
		if ended != 0 {
			t.Errorf("the hook was ended after %v, while its container lived", ended)
		}
		cancel()
		synctest.Wait()
		if ended != (30+minGrace)*time.Second {
			t.Errorf("the hook was ended after %v, its container after 32 s", ended)
		}

		began = time.Now()
		failed := errors.New("exited with 1")
		cancel, err = preStop(t.Context(), newStopTime(30), func(context.Context) error { time.Sleep(time.Second); return failed })
		cancel()
		if waited := time.Since(began); waited != time.Second || !errors.Is(err, failed) {
			t.Errorf("after a hook that failed: %v, %v", waited, err)
		}
	})
}

// TestWhyAPodCannotBeEnded: a pod that the runtime does not let go says why in its events,
// of its containers and then of its sandbox, and ends when the runtime does its part.
func TestWhyAPodCannotBeEnded(t *testing.T) {
	n := newNode(t)
	var fails atomic.Value
	fails.Store("StopContainer")
	n.rt.Fail = func(method string) error {
		if method == fails.Load() {
			return status.Error(codes.Unknown, method+" hangs")
		}
		return nil
	}
	n.start()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	n.api.deletePod("p")
	for _, c := range []struct{ method, want string }{
		{"StopContainer", `FailedKillPod: error killing pod: failed to "KillContainer" for "c" with KillContainerError: "rpc error: code = Unknown desc = StopContainer hangs"`},
		{"StopPodSandbox", "FailedKillPod: error killing pod: rpc error: code = Unknown desc = StopPodSandbox hangs"},
	} {
		fails.Store(c.method)
		n.until(c.method, func() bool { return slices.Contains(n.api.events(), c.want) })
	}
	fails.Store("")
	n.until("gone", n.rt.Empty)
}

// lingering is a pod of one container, of the pod's name, that takes until its grace is over to
// end where its preStop hook hangs.
func lingering(name string, grace int64) *corev1.Pod {
	p := podtest.Pod(name, name)
	p.Spec.TerminationGracePeriodSeconds = &grace
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"linger"}}}}
	return p
}

// hang lets the hooks of containers hang, each until it is released.
func (n *node) hang(names ...string) (release func(name string)) {
	hangs := map[string]chan struct{}{}
	for _, name := range names {
		hangs[name] = make(chan struct{})
	}
	n.rt.OnExec = func(container string, _ []string) (string, int32) {
		select {
		case <-hangs[container]:
		case <-n.t.Context().Done():
		}
		return "", 0
	}
	return func(name string) { close(hangs[name]) }
}

// linger starts a node with lingering pods, whose hooks hang.
func (n *node) linger(grace int64, names ...string) (release func(name string)) {
	release = n.hang(names...)
	n.start()
	for _, name := range names {
		n.api.addPod(lingering(name, grace))
		n.until(name, n.ready(name))
	}
	return release
}

// TestEndingPodIsReady: a pod that is ending stays started and ready for as long as its readiness
// probe succeeds, so that its endpoints serve until it has drained.
func TestEndingPodIsReady(t *testing.T) {
	n := newNode(t)
	release := n.hang("p")
	hook := n.rt.OnExec
	var drained atomic.Int32
	n.rt.OnExec = func(container string, command []string) (string, int32) {
		if command[0] == "linger" {
			return hook(container, command)
		}
		return "", drained.Load()
	}
	n.start()
	p := lingering("p", 600)
	probe := &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"probe"}}}}
	p.Spec.Containers[0].StartupProbe, p.Spec.Containers[0].ReadinessProbe = probe, probe
	n.api.addPod(p)
	n.until("ready", n.ready("p"))
	n.api.deletePodWithin("p", 600)
	n.until("it ends", n.sent("Killing: Stopping container p"))
	n.k.worker("uid-p").end(&ending{reason: "Terminated", grace: new(int64(500))}) // a look at the pod that ends
	n.api.addPod(podtest.Pod("later", "later"))
	n.until("later", n.ready("later"))
	if c := n.api.pod("p").Status.ContainerStatuses[0]; !*c.Started || !c.Ready || !n.ready("p")() {
		t.Errorf("started %t, ready %t", *c.Started, c.Ready)
	}
	drained.Store(1)
	n.until("it has drained", func() bool { return !n.ready("p")() })
	if c := n.api.pod("p").Status.ContainerStatuses[0]; !*c.Started || c.Ready {
		t.Errorf("drained: started %t, ready %t", *c.Started, c.Ready)
	}
	release("p")
	n.until("gone", func() bool { return n.api.pod("p") == nil })
}

// TestGraceShrinks: of the graces that a pod is given the shorter one counts, its own only
// where there is no other.
func TestGraceShrinks(t *testing.T) {
	for i, c := range []struct {
		own, deleted, node *int64
		want               int64
	}{
		{nil, nil, nil, 30}, {new(int64(60)), nil, nil, 60}, {new(int64(60)), new(int64(600)), nil, 600}, {new(int64(60)), new(int64(5)), new(int64(30)), 5},
		{new(int64(60)), new(int64(600)), new(int64(30)), 30}, {new(int64(60)), nil, new(int64(1)), 1},
	} {
		p := podtest.Pod("p", "c")
		p.Spec.TerminationGracePeriodSeconds, p.DeletionGracePeriodSeconds = c.own, c.deleted
		if got := graceOf(p, &ending{grace: c.node}); got != c.want {
			t.Errorf("case %d: %d, want %d", i, got, c.want)
		}
	}
}

// TestEndsSooner: a pod that is ending ends sooner once the node gives it less time than who
// deleted it, or than the node did before, or who deleted it thinks better of it; never later.
func TestEndsSooner(t *testing.T) {
	n := newNode(t)
	n.linger(600, "drained", "evicted", "both", "again")
	end := func(name string, grace int64) {
		n.k.worker(podtest.Pod(name).UID).end(&ending{reason: "Terminated", grace: &grace})
	}
	n.api.deletePodWithin("drained", 600)
	end("evicted", 600)
	n.api.deletePodWithin("both", 500)
	n.api.deletePodWithin("again", 600)
	for _, name := range []string{"drained", "evicted", "both", "again"} {
		n.until(name+" ends", n.sent("Killing: Stopping container "+name))
	}
	end("both", 550)
	n.api.addPod(podtest.Pod("later", "later"))
	n.until("later", n.ready("later"))
	if got := n.rt.Running(); !slices.Equal(got, []string{"again", "both", "drained", "evicted", "later"}) {
		t.Fatalf("running %v", got)
	}
	end("drained", 1)
	end("evicted", 1)
	n.api.deletePodWithin("again", 1)
	n.until("they have ended", func() bool { return slices.Equal(n.rt.Running(), []string{"both", "later"}) })
	if calls := n.rt.Calls(); len(calls) != len(slices.Compact(slices.Sorted(slices.Values(calls)))) {
		t.Errorf("calls twice: %v", calls) // of StopContainer, or of a hook
	}
}

// TestShorterGraceWaits: a hook that has time by the shorter grace too goes on without SIGTERM,
// and a sidecar still serves it; then they end in their order.
func TestShorterGraceWaits(t *testing.T) {
	n := newNode(t)
	release := n.hang("p")
	n.start()
	n.api.addPod(podtest.WithInit(lingering("p", 600), "s"))
	n.until("ready", n.ready("p"))
	n.api.deletePodWithin("p", 600)
	n.until("both end", func() bool {
		return n.sent("Killing: Stopping container p")() && n.sent("Killing: Stopping container s")()
	})
	w := n.k.worker("uid-p")
	for _, grace := range []int64{500, 400} {
		w.end(&ending{reason: "Terminated", grace: &grace})
		n.api.addPod(podtest.Pod(fmt.Sprint("later", grace), "later"))
		n.until("later", n.ready(fmt.Sprint("later", grace)))
	}
	if got := n.rt.Running(); !slices.Equal(got, []string{"later", "later", "p", "s"}) {
		t.Errorf("running %v", got)
	}
	release("p")
	n.until("gone", func() bool { return n.api.pod("p") == nil })
	calls := n.rt.Calls()
	if a, b := slices.Index(calls, "StopContainer p"), slices.Index(calls, "StopContainer s"); a < 0 || b < a {
		t.Errorf("calls %v", calls)
	}
}

// TestShorterGraceKeepsOrder: a shorter grace does not have SIGTERM come while a preStop hook
// runs that still has time by it; the container has from SIGTERM to SIGKILL what the hook leaves
// of the shorter grace.
func TestShorterGraceKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := func() time.Duration { return time.Since(began) }
		for _, c := range []struct {
			hook  time.Duration // that the hook takes
			wait  time.Duration // until the grace of 600 s shrinks
			grace int64
			over  time.Duration // when the step is
			left  int64
		}{
			{5 * time.Second, 0, 30, 5 * time.Second, 25},
			{5 * time.Second, 3 * time.Second, 30, 5 * time.Second, 28},
			{time.Hour, 100 * time.Second, 30, 130 * time.Second, minGrace},
			{time.Hour, 100 * time.Second, 0, 100 * time.Second, minGrace},
			{time.Hour, 100 * time.Second, 1 << 62, 600 * time.Second, minGrace},
			{time.Hour, 590 * time.Second, 500, 600 * time.Second, minGrace},
		} {
			began = time.Now()
			until := newStopTime(600)
			time.AfterFunc(c.wait, func() {
				if until.sooner(c.grace) {
					t.Errorf("%+v: asks the runtime to stop it while its hook runs", c)
				}
			})
			cancel, err := preStop(t.Context(), until, func(ctx context.Context) error {
				select {
				case <-time.After(c.hook):
				case <-ctx.Done():
				}
				return nil
			})
			if at() != c.over || err != nil {
				t.Errorf("%+v: SIGTERM after %v: %v", c, at(), err)
			}
			if left := until.stop(); left != c.left {
				t.Errorf("%+v: SIGKILL %d s later", c, left)
			}
			cancel()
		}
		until := newStopTime(600)
		for i, c := range []struct {
			grace int64
			again bool
		}{{600, false}, {700, false}, {30, true}, {40, false}, {10, true}, {1, true}} {
			if i == 0 {
				if left := until.stop(); left != 600 {
					t.Errorf("SIGKILL after %d s", left)
				}
			}
			if again := until.sooner(c.grace); again != c.again {
				t.Errorf("after SIGTERM, %d s: asks again: %t", c.grace, again)
			}
		}
	})
}

// TestPreStopWithoutGrace: a pod that has no time to end has the second that upstream gives it.
func TestPreStopWithoutGrace(t *testing.T) {
	n := newNode(t)
	var ran atomic.Bool
	n.rt.OnExec = func(string, []string) (string, int32) { ran.Store(true); return "", 0 }
	n.start()
	n.api.addPod(lingering("p", 0))
	n.until("ready", n.ready("p"))
	n.api.deletePodWithin("p", 0)
	n.until("gone", n.rt.Empty)
	if !ran.Load() {
		t.Error("its preStop hook did not run")
	}
}
