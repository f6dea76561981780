package kubelet

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// planReset gives the containers to remove after the end of sources, which are last, so
// that one which is not yet removed tells, also after a restart, that it is not over.
func planReset(pod *corev1.Pod, v *runtimestate.Pod, sources []*runtimestate.Container) (all []*runtimestate.Container) {
	var inits []*runtimestate.Container
	for _, c := range v.Containers {
		switch spec, kind := podspec.FindContainer(pod, c.Name()); {
		case spec == nil || kind == podspec.EphemeralContainer || slices.Contains(sources, c):
		case kind == podspec.InitContainer:
			inits = append(inits, c)
		default:
			all = append(all, c)
		}
	}
	return slices.Concat(all, inits, sources)
}

// reset ends and removes all containers of the pod, so that they begin anew in the same
// sandbox and with the same volumes. Logs stay until the pod goes. One that ends
// soon after it began waits as it would for its own restart, since otherwise such a
// pod would never rest.
func (w *worker) reset(ctx context.Context, a actions) time.Duration {
	if w.anyBusy(opStart, opTrim) {
		return never // they wake the worker when done
	}
	key := opKey{kind: opReset}
	if w.busy(key) {
		return never
	}
	again := w.retryIn(key)
	for _, c := range a.sources {
		again = max(again, w.crashLeft(c.Name(), c))
	}
	if again > 0 {
		return again
	}
	ending := false
	for _, c := range a.reset {
		if !c.Exited() && c.State != cri.ContainerState_CONTAINER_CREATED {
			ending = true
			w.kill(ctx, c, "killing", new(int64))
		}
	}
	if ending {
		return never
	}
	w.begin(ctx, key, func(ctx context.Context) func() {
		var err error
		for _, c := range a.reset {
			_, err = w.k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id})
			if err != nil && status.Code(err) != codes.NotFound {
				break
			}
		}
		return func() { w.resetDone(ctx, a.sources, err) }
	})
	return never
}

func (w *worker) resetDone(ctx context.Context, sources []*runtimestate.Container, err error) {
	w.stale.Store(true)
	switch {
	case ctx.Err() != nil:
	case err != nil && status.Code(err) != codes.NotFound:
		w.retryLater(opKey{kind: opReset}, time.Second, time.Minute)
		w.eventOnce("reset", corev1.EventTypeWarning, "FailedSync", "error removing a container to restart all containers: "+err.Error())
	default:
		w.succeeded(opKey{kind: opReset})
		for _, c := range sources {
			w.crashed(c)
		}
	}
}
