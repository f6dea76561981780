package kubelet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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
