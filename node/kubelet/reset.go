package kubelet

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// planReset gives the containers to remove if one has ended by a rule with the action
// RestartAllContainers, else none. Those that ended by it are last, so that one which
// is not yet removed tells, also after a restart, that it is not over.
func planReset(pod *corev1.Pod, v *runtimestate.Pod) (out []*runtimestate.Container) {
	if !podspec.MayRestartAll(pod) {
		return nil
	}
	var sources, inits []*runtimestate.Container
	for _, c := range v.Containers {
		spec, kind := podspec.FindContainer(pod, c.Name())
		switch {
		case spec == nil || kind == podspec.EphemeralContainer:
		case c == v.Latest(c.Name()) && c.Exited() && podspec.RestartsAllOn(spec, c.ExitCode):
			sources = append(sources, c)
		case kind == podspec.InitContainer:
			inits = append(inits, c)
		default:
			out = append(out, c)
		}
	}
	if len(sources) == 0 {
		return nil
	}
	return append(append(out, inits...), sources...)
}

// reset ends and removes all containers of the pod, so that they begin anew in the same
// sandbox and with the same volumes. Logs stay until the pod goes. One that ends
// soon after it began waits as it would for its own restart, since otherwise such a
// pod would never rest.
func (w *worker) reset(ctx context.Context, all []*runtimestate.Container) time.Duration {
	if w.anyBusy(opStart, opTrim) {
		return never // they wake the worker when done
	}
	key := opKey{kind: opReset}
	if w.busy(key) {
		return never
	}
	again, ending := w.retryIn(key), false
	for _, c := range all {
		if spec, _ := podspec.FindContainer(w.pod, c.Name()); c.Exited() && podspec.RestartsAllOn(spec, c.ExitCode) {
			again = max(again, w.crashLeft(c.Name(), c))
		}
	}
	if again > 0 {
		return again
	}
	for _, c := range all {
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
		for _, c := range all {
			_, err = w.k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id})
			if err != nil && status.Code(err) != codes.NotFound {
				break
			}
		}
		return func() { w.resetDone(ctx, all, err) }
	})
	return never
}

func (w *worker) resetDone(ctx context.Context, all []*runtimestate.Container, err error) {
	w.stale.Store(true)
	switch {
	case ctx.Err() != nil:
	case err != nil && status.Code(err) != codes.NotFound:
		w.retryLater(opKey{kind: opReset}, time.Second, time.Minute)
		w.eventOnce("reset", corev1.EventTypeWarning, "FailedSync", "error removing a container to restart all containers: "+err.Error())
	default:
		w.succeeded(opKey{kind: opReset})
		for _, c := range all {
			if spec, _ := podspec.FindContainer(w.pod, c.Name()); spec != nil && c.Exited() && podspec.RestartsAllOn(spec, c.ExitCode) {
				w.crashed(c)
			}
		}
	}
}
