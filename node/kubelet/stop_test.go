package kubelet

import (
	"context"
	"errors"
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
		cancel, err := preStop(t.Context(), 30*time.Second, func(ctx context.Context) error {
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
		cancel, err = preStop(t.Context(), 30*time.Second, func(context.Context) error { time.Sleep(time.Second); return failed })
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
// deleted it, or than the node did before; never later.
func TestEndsSooner(t *testing.T) {
	n := newNode(t)
	n.linger(600, "drained", "evicted", "both")
	end := func(name string, grace int64) {
		n.k.worker(podtest.Pod(name).UID).end(&ending{reason: "Terminated", grace: &grace})
	}
	ending := func(name string) {
		n.until(name+" ends", n.sent("Killing: Stopping container "+name))
	}
	n.api.deletePodWithin("drained", 600)
	end("evicted", 600)
	n.api.deletePodWithin("both", 500)
	for _, name := range []string{"drained", "evicted", "both"} {
		ending(name)
	}
	end("both", 550)
	n.api.addPod(podtest.Pod("later", "later"))
	n.until("later", n.ready("later"))
	if got := n.rt.Running(); !slices.Equal(got, []string{"both", "drained", "evicted", "later"}) {
		t.Fatalf("running %v", got)
	}
	for _, name := range []string{"drained", "evicted"} {
		end(name, 30)
		n.until(name+" has ended", func() bool { return !slices.Contains(n.rt.Running(), name) })
	}
	if got := n.rt.Running(); !slices.Equal(got, []string{"both", "later"}) {
		t.Errorf("running %v", got)
	}
}
