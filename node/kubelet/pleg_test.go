package kubelet

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A listRuntime lists no sandboxes while it hangs.
type listRuntime struct {
	cri.RuntimeServiceClient
	hangs atomic.Bool
}

func (r *listRuntime) ListPodSandbox(ctx context.Context, _ *cri.ListPodSandboxRequest, _ ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	if !r.hangs.Load() {
		return &cri.ListPodSandboxResponse{}, nil
	}
	select {
	case <-time.After(2 * time.Minute): // as the deadline of a call has it
		return nil, context.DeadlineExceeded
	case <-ctx.Done():
		return nil, errors.New("ended")
	}
}

// TestNodeOfARuntimeThatHangs: a node whose runtime says that it is well and lists no pods is
// not ready, in upstream's words, until it lists them again.
func TestNodeOfARuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &listRuntime{}
		r.hangs.Store(true)
		k := &Kubelet{runtime: r, metrics: newMetrics(), up: newGate()}
		k.runtimeUp.Store(true)
		k.network.Store(true)
		k.pressure.Store(&pressure{})
		ready := func() string {
			n := &corev1.Node{}
			k.setConditions(n, time.Now())
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					return string(c.Status) + " " + c.Message
				}
			}
			return ""
		}
		go k.followList(ctx)
		time.Sleep(10 * time.Minute)
		if got := ready(); !strings.HasPrefix(got, "True") {
			t.Errorf("before the runtime was there: %s", got)
		}
		k.up.open()
		time.Sleep(2 * time.Minute)
		if got := ready(); !strings.HasPrefix(got, "True") {
			t.Errorf("two minutes after: %s", got)
		}
		time.Sleep(2 * time.Minute)
		if got := ready(); got != "False PLEG is not healthy: pleg has yet to be successful" {
			t.Errorf("four minutes after: %s", got)
		}
		r.hangs.Store(false)
		time.Sleep(3 * time.Minute)
		if got := ready(); !strings.HasPrefix(got, "True") {
			t.Errorf("when it lists pods: %s", got)
		}
		r.hangs.Store(true)
		time.Sleep(2*time.Minute + 20*time.Second)
		if got := ready(); !strings.HasPrefix(got, "True") {
			t.Errorf("when one list has hung: %s", got)
		}
		time.Sleep(3 * time.Minute)
		if got := ready(); got != "False PLEG is not healthy: pleg was last seen active 5m0s ago; threshold is 3m0s" {
			t.Errorf("when it hangs again: %s", got)
		}
		cancel()
	})
}
