package kubelet

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// minGrace is the least time a container has between SIGTERM and SIGKILL.
const minGrace = 2

// graceOf is how long a container may take to end, seconds.
func graceOf(pod *corev1.Pod, e *ending) int64 {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case e != nil && e.grace != nil:
		return *e.grace
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return 30
}

// probeGrace is the grace of a container that failed a probe, if the probe has
// its own.
func probeGrace(pod *corev1.Pod, kl killing) *int64 {
	c, _ := findContainer(pod, kl.name)
	if c == nil {
		return nil
	}
	switch {
	case kl.reason == "LivenessProbe" && c.LivenessProbe != nil:
		return c.LivenessProbe.TerminationGracePeriodSeconds
	case kl.reason == "StartupProbe" && c.StartupProbe != nil:
		return c.StartupProbe.TerminationGracePeriodSeconds
	}
	return nil
}

// kill ends one container: preStop hook, its turn, SIGTERM, SIGKILL. A later
// call with a shorter grace shortens what is left.
func (w *worker) kill(ctx context.Context, c *container, message string, override *int64) {
	pod := w.pod
	grace := graceOf(pod, w.ended)
	if override != nil && pod.DeletionGracePeriodSeconds == nil {
		grace = *override
	}
	key := "kill:" + c.Id
	if before, ok := w.killed[c.Id]; ok && w.busy(key) {
		if grace < before {
			w.killed[c.Id] = grace
			w.openTurn(c.name())
			w.begin(ctx, key+":shorter:"+strconv.FormatInt(grace, 10), func(ctx context.Context) func() {
				_, err := w.k.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id, Timeout: max(grace, minGrace)})
				return func() { w.killDone(c, err) }
			})
		}
		return
	}
	if t, ok := w.retry[key]; ok && time.Now().Before(t) {
		return
	}
	w.killed[c.Id] = grace
	spec, _ := findContainer(pod, c.name())
	if message == "" {
		message = "Stopping container " + c.name()
	}
	var turn chan struct{}
	if w.ended != nil && spec != nil && isSidecar(spec) {
		turn = make(chan struct{})
		w.turns[c.name()] = turn
	}
	ip := first(w.podIPs())
	w.begin(ctx, key, func(ctx context.Context) func() {
		err := w.k.killContainer(ctx, pod, spec, c, message, grace, ip, turn)
		return func() { w.killDone(c, err) }
	})
}

func (w *worker) killDone(c *container, err error) {
	w.stale.Store(true)
	if err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.Canceled {
		slog.Warn("kill container", "pod", podRef(w.pod), "container", c.name(), "err", err)
		w.again("kill:"+c.Id, time.Second, 10*time.Second)
	}
}

func (w *worker) openTurn(name string) {
	if t := w.turns[name]; t != nil {
		close(t)
		delete(w.turns, name)
	}
}

func (k *Kubelet) killContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, c *container, message string, grace int64, ip string, turn chan struct{}) error {
	begun := time.Now()
	ref := podReference(pod)
	if spec != nil {
		ref = containerReference(pod, spec)
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Killing", message)
	left := func() int64 { return grace - int64(time.Since(begun)/time.Second) }
	if spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && grace > 0 {
		hookCtx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second)
		if err := k.hook(hookCtx, pod, spec, c.Id, ip, spec.Lifecycle.PreStop); err != nil && hookCtx.Err() == nil {
			k.events.Event(ref, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
		cancel()
	}
	if turn != nil && left() > 0 {
		t := time.NewTimer(time.Duration(left()) * time.Second)
		select {
		case <-turn:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	_, err := k.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id, Timeout: max(left(), minGrace)})
	return err
}

// stop ends a pod step by step: containers, sandbox and volumes, the object,
// and at last what the runtime still holds.
func (w *worker) stop(ctx context.Context, gone bool) time.Duration {
	for key, o := range w.ops {
		for _, p := range []string{"start:", "pull:", "volumes", "sandbox", "resize:"} {
			if len(key) >= len(p) && key[:len(p)] == p {
				o.cancel()
			}
		}
	}
	running := w.view.running()
	for _, c := range running {
		w.kill(ctx, c, "", nil)
	}
	w.openTurns()
	again := never
	for _, c := range running {
		if t, ok := w.retry["kill:"+c.Id]; ok {
			again = min(again, max(time.Until(t), 0))
		}
	}
	if len(running) > 0 || w.busy("start") || w.busy("sandbox") || w.busy("volumes") || w.busy("pull") {
		return again
	}
	if w.stale.Load() {
		w.poke() // an operation just ended: look once more before going on
		return again
	}
	if !w.cleaned {
		if t, ok := w.retry["clean"]; ok && time.Now().Before(t) {
			return min(again, time.Until(t))
		}
		w.clean(ctx)
		return again
	}
	pod := w.pod
	if !gone && !w.deleted && (pod.DeletionTimestamp != nil || w.base != nil && w.base.DeletionTimestamp != nil) && w.base != nil && !isStatic(pod) {
		if !w.reported && !w.final {
			return again // report wakes the worker when it is through
		}
		if t, ok := w.retry["delete"]; ok && time.Now().Before(t) {
			return min(again, time.Until(t))
		}
		w.begin(ctx, "delete", func(ctx context.Context) func() {
			err := w.k.deletePod(ctx, pod)
			return func() {
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					slog.Warn("delete pod", "pod", podRef(pod), "err", err)
					w.again("delete", 200*time.Millisecond, 10*time.Second)
					return
				}
				w.deleted = true
			}
		})
		return again
	}
	if gone || w.deleted {
		return min(again, w.remove(ctx))
	}
	w.trim(ctx)
	return again
}

// openTurns lets sidecars go: the last one first, once everything that came
// after it has ended.
func (w *worker) openTurns() {
	if len(w.turns) == 0 {
		return
	}
	for i := range w.pod.Spec.Containers {
		if c := w.view.latest(w.pod.Spec.Containers[i].Name); c != nil && c.running() {
			return
		}
	}
	for i := len(w.pod.Spec.InitContainers) - 1; i >= 0; i-- {
		name := w.pod.Spec.InitContainers[i].Name
		c := w.view.latest(name)
		if c == nil || !c.running() {
			delete(w.turns, name)
			continue
		}
		w.openTurn(name)
		return
	}
}

// clean stops the sandboxes and takes the volumes and the cgroup away.
func (w *worker) clean(ctx context.Context) {
	pod := w.pod
	var ids []string
	for _, s := range w.view.sandboxes {
		if s.ready() {
			ids = append(ids, s.Id)
		}
	}
	w.begin(ctx, "clean", func(ctx context.Context) func() {
		errs := make(chan error, len(ids)+1)
		for _, id := range ids {
			go func() {
				_, err := w.k.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
				if status.Code(err) == codes.NotFound {
					err = nil
				}
				errs <- err
			}()
		}
		errs <- w.k.volumes.Unmount(ctx, string(pod.UID))
		var failed error
		for range len(ids) + 1 {
			if err := <-errs; err != nil {
				failed = err
			}
		}
		if failed == nil {
			failed = w.k.removePodCgroup(pod)
		}
		return func() {
			w.stale.Store(true)
			if failed != nil {
				if ctx.Err() == nil {
					slog.Warn("clean up pod", "pod", podRef(pod), "err", failed)
					w.again("clean", 200*time.Millisecond, 10*time.Second)
				}
				return
			}
			w.cleaned = true
		}
	})
}

// remove takes away what the runtime holds of a pod that is gone.
func (w *worker) remove(ctx context.Context) time.Duration {
	if w.removed {
		return never // the worker ends with its last operation
	}
	if t, ok := w.retry["remove"]; ok && time.Now().Before(t) {
		return time.Until(t)
	}
	v, pod := w.view, w.pod
	w.begin(ctx, "remove", func(ctx context.Context) func() {
		var failed error
		for _, c := range v.containers {
			w.k.prober.Forget(c.Id)
			if w.k.cfg.ContainerLogsDir != "" {
				_ = os.Remove(w.k.logLink(pod.Name, pod.Namespace, c.name(), c.Id))
			}
			if _, err := w.k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id}); err != nil && status.Code(err) != codes.NotFound {
				failed = err
			}
		}
		for _, s := range v.sandboxes {
			if _, err := w.k.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil && status.Code(err) != codes.NotFound {
				failed = err
			}
		}
		if err := os.RemoveAll(w.k.podLogDir(pod)); err != nil {
			failed = err
		}
		return func() {
			if failed != nil {
				if ctx.Err() == nil {
					slog.Warn("remove pod from runtime", "pod", podRef(pod), "err", failed)
				}
				w.again("remove", time.Second, time.Minute)
				return
			}
			w.removed = true
		}
	})
	return never
}

// trim removes dead containers that are neither the newest of their name nor
// the one before, and sandboxes nothing is left in.
func (w *worker) trim(ctx context.Context) {
	count := map[string]int{}
	var old []*container
	used := map[string]bool{}
	for _, c := range w.view.containers {
		count[c.name()]++
		if count[c.name()] > maxContainersPerName && c.exited() {
			old = append(old, c)
			continue
		}
		used[c.sandboxID] = true
	}
	var boxes []string
	for i, s := range w.view.sandboxes {
		if i > 0 && !s.ready() && !used[s.Id] {
			boxes = append(boxes, s.Id)
		}
	}
	if len(old) == 0 && len(boxes) == 0 {
		return
	}
	pod := w.pod
	w.begin(ctx, "trim", func(ctx context.Context) func() {
		for _, c := range old {
			if _, err := w.k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id}); err == nil {
				if c.LogPath != "" && filepath.Dir(filepath.Dir(c.LogPath)) == w.k.podLogDir(pod) {
					rotated, _ := filepath.Glob(c.LogPath + "*")
					for _, f := range rotated {
						_ = os.Remove(f)
					}
				}
				if w.k.cfg.ContainerLogsDir != "" {
					_ = os.Remove(w.k.logLink(pod.Name, pod.Namespace, c.name(), c.Id))
				}
			}
		}
		for _, id := range boxes {
			_, _ = w.k.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		}
		return func() { w.stale.Store(true) }
	})
}
