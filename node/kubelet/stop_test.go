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
