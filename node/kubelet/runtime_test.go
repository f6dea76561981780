package kubelet

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/fakecri"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
)

// A hungRuntime answers no call.
type hungRuntime struct{ grpc.ClientConnInterface }

func (hungRuntime) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestCallsToTheRuntimeEnd: a call takes upstream's two minutes at most, and
// the delay that it was itself given.
func TestCallsToTheRuntimeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, images := cri.NewRuntimeServiceClient(deadlines{hungRuntime{}, 2 * time.Minute}), cri.NewImageServiceClient(deadlines{hungRuntime{}, 2 * time.Minute})
		const whole = 24 * time.Hour // of the caller's own context
		for name, c := range map[string]struct {
			call func(context.Context) error
			want time.Duration
		}{
			"list": {func(ctx context.Context) error {
				_, err := rt.ListContainers(ctx, &cri.ListContainersRequest{})
				return err
			}, 2 * time.Minute},
			"sandbox": {func(ctx context.Context) error {
				_, err := rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{})
				return err
			}, 4 * time.Minute},
			"stop": {func(ctx context.Context) error {
				_, err := rt.StopContainer(ctx, &cri.StopContainerRequest{Timeout: 30})
				return err
			}, 2*time.Minute + 30*time.Second},
			"exec": {func(ctx context.Context) error {
				_, err := rt.ExecSync(ctx, &cri.ExecSyncRequest{Timeout: 1})
				return err
			}, 2*time.Minute + time.Second},
			"hook": {func(ctx context.Context) error { _, err := rt.ExecSync(ctx, &cri.ExecSyncRequest{}); return err }, whole},
			"pull": {func(ctx context.Context) error { _, err := images.PullImage(ctx, &cri.PullImageRequest{}); return err }, whole},
			"image fs": {func(ctx context.Context) error {
				_, err := images.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
				return err
			}, 2 * time.Minute},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), whole)
			began := time.Now()
			if err := c.call(ctx); err == nil || time.Since(began) != c.want {
				t.Errorf("%s: %v after %s, want %s", name, err, time.Since(began), c.want)
			}
			cancel()
		}
	})
}

// TestRuntimeWithoutEvents: what happens to containers is seen without the runtime's events,
// long before all pods are looked at for safety.
func TestRuntimeWithoutEvents(t *testing.T) {
	n := newNode(t)
	n.rt.NoEvents = true
	defer n.start()()
	n.api.addPod(podtest.Pod("bad", "c"))
	n.until("ready", n.ready("bad"))
	n.rt.Exit("c", 3)
	n.until("restarted", func() bool {
		s := n.api.pod("bad").Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.State.Running != nil
	})
}

// TestRuntimeDownIsLoggedOnce: that the runtime is down is a line, and that it is up again is
// one, however many pods wait for it; what it fails at while it is up is one too.
func TestRuntimeDownIsLoggedOnce(t *testing.T) {
	events := record.NewFakeRecorder(10)
	k := &Kubelet{up: newGate(), asked: newGate(), events: events}
	a := &worker{k: k, pod: podtest.Pod("a", "c"), lastEvents: map[string]pastEvent{}}
	b := &worker{k: k, pod: podtest.Pod("b", "c"), lastEvents: map[string]pastEvent{}}
	for _, c := range []struct {
		up   bool
		want string
	}{
		{false, `level=INFO msg="waiting for the container runtime" err="it hangs"`},
		{true, `level=INFO msg="container runtime is ready"`},
		{false, `level=WARN msg="container runtime is not ready" err="it hangs"`},
		{true, `level=INFO msg="container runtime is ready"`},
	} {
		text := logged(t, func() {
			for range 3 {
				k.setRuntime(c.up, true, "it hangs", "")
				if !c.up {
					a.noteUnread(errors.New("connection refused"))
				}
			}
		})
		if !strings.Contains(text, c.want) || strings.Count(text, "\n") != 1 {
			t.Errorf("want %s alone in\n%s", c.want, text)
		}
	}
	text := logged(t, func() {
		for range 3 {
			a.noteUnread(errors.New("unknown"))
			b.noteUnread(errors.New("unknown"))
		}
	})
	if want := `msg="read pod from runtime" pod=` + podspec.Format(a.pod) + " err=unknown"; !strings.Contains(text, want) || strings.Count(text, "\n") != 1 {
		t.Errorf("want %s alone in\n%s", want, text)
	}
	for range 2 {
		if got, want := <-events.Events, "Warning FailedSync error determining status: unknown"; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
	if n := len(events.Events); n != 0 {
		t.Errorf("%d events too many", n)
	}
}

// TestRuntimeStatusMissed: a runtime that is started anew, and gives no status meanwhile, does
// not make the node not ready before half a minute has passed.
func TestRuntimeStatusMissed(t *testing.T) {
	rt := fakecri.New()
	defer rt.Close()
	conn, err := rt.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	k := &Kubelet{up: newGate(), asked: newGate(), runtime: cri.NewRuntimeServiceClient(conn)}
	k.runtimeInfo.Store(&cri.VersionResponse{})
	down := func(want bool) {
		t.Helper()
		if k.readRuntime(t.Context()); k.runtimeUp.Load() == want {
			t.Errorf("down is %v, want %v: %s", !want, want, *k.runtimeErr.Load())
		}
	}
	down(false)
	rt.Fail = func(method string) error { return errors.New("connection refused") }
	down(false)
	k.runtimeSeen = time.Now().Add(-runtimeMissed)
	down(true)
	rt.Fail = nil
	down(false)
}

// TestImageEndpoint: images are asked for at their own socket, pods at the runtime's; and the
// limit of open files is what the settings say.
func TestImageEndpoint(t *testing.T) {
	images := fakecri.New()
	defer images.Close()
	images.Registry = func(string, *cri.AuthConfig) error { return nil }
	socket := filepath.Join(t.TempDir(), "images.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	cri.RegisterImageServiceServer(srv, images)
	go func() { _ = srv.Serve(ln) }()
	defer srv.Stop()
	n := newNode(t)
	var files atomic.Int64
	n.config = func(c *Config) {
		c.ImageEndpoint = socket
		c.Settings.MaxOpenFiles = 7777
		c.OpenFiles = func(most int64) error { files.Store(most); return nil }
	}
	defer n.start()()
	pod := podtest.Pod("p", "c")
	pod.Spec.Containers[0].Image = "elsewhere:1"
	n.api.addPod(pod)
	n.until("the image is pulled", func() bool { return slices.Contains(images.Calls(), "PullImage elsewhere:1") })
	n.until("ready", n.ready("p"))
	if calls := n.rt.Calls(); slices.Contains(calls, "PullImage elsewhere:1") || !slices.Contains(calls, "StartContainer c") {
		t.Errorf("the runtime was asked for %q", calls)
	}
	if got := files.Load(); got != 7777 {
		t.Errorf("%d files may be open, want 7777", got)
	}
}
