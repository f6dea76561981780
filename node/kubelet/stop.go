package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// maxContainersPerName is how many containers of one name are kept in the runtime.
const maxContainersPerName = 2

// graceOf is how long a container may take to end, seconds: the shorter of what who deletes
// the pod gives it and what the node can; its own if neither says.
func graceOf(pod *corev1.Pod, e *ending) int64 {
	if deleted := pod.DeletionGracePeriodSeconds; deleted != nil && (e == nil || e.grace == nil || *deleted <= *e.grace) {
		return *deleted
	}
	return nodeGrace(pod, e)
}

// nodeGrace is graceOf as if nobody had deleted the pod.
func nodeGrace(pod *corev1.Pod, e *ending) int64 {
	switch {
	case e != nil && e.grace != nil:
		return *e.grace
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return 30
}

// hasten has the pod's end heed another one that came after it. Its grace counts if it is
// shorter: the node goes down, or runs out of something, before a pod has ended that somebody
// deleted. Its reason counts if the first one has none, as upstream's status functions of a pod
// that terminates do: somebody deleted it, and then the node evicted it. What has ended stays as it is.
func (w *worker) hasten(end *ending) {
	if end == nil {
		return
	}
	if end.grace != nil && *end.grace < graceOf(w.pod, w.ended) {
		w.ended.grace, w.ended.began = end.grace, time.Now()
	}
	if w.ended.reason == "" && end.reason != "" && !end.rejected && w.active() && !w.statusTerminal() {
		w.ended.reason, w.ended.message, w.ended.disruption, w.ended.why = end.reason, end.message, end.disruption, end.why
		w.ended.began = time.Now()
	}
}

// probeGrace is the grace of a container that failed a probe, if the probe has
// its own.
func probeGrace(pod *corev1.Pod, kl killing) *int64 {
	c, _ := podspec.FindContainer(pod, kl.name)
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
// call with a shorter grace shortens what is left of the step that it is at.
func (w *worker) kill(ctx context.Context, c *runtimestate.Container, message string, override *int64) {
	pod := w.pod
	grace := graceOf(pod, w.ended)
	if w.ended != nil {
		grace = max(grace, 1) // as upstream has it: a preStop hook begins even if there is none
	}
	if override != nil && pod.DeletionGracePeriodSeconds == nil {
		grace = *override
	}
	key, state := opKey{kind: opKill, of: c.Id}, w.instance(c.Id)
	if state.grace != nil && w.ending(c.Id) {
		if grace < *state.grace {
			state.grace = &grace
			if state.stop.sooner(grace) {
				w.begin(ctx, opKey{opShorten, c.Id, grace}, func(ctx context.Context) func() {
					_, err := w.k.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id, Timeout: max(grace, minGrace)})
					return func() { w.killDone(c, err) }
				})
			}
		}
		return
	}
	if w.retryIn(key) > 0 {
		return
	}
	until := newStopTime(grace)
	state.grace, state.stop = &grace, until
	spec, _ := podspec.FindContainer(pod, c.Name())
	if message == "" {
		message = "Stopping container " + c.Name()
	}
	var turn chan struct{}
	if w.ended != nil && spec != nil && podspec.IsSidecar(spec) {
		turn = make(chan struct{})
		w.container(c.Name()).mayStop = turn
	}
	ip := firstOf(w.podIPs())
	w.begin(ctx, key, func(ctx context.Context) func() {
		err := w.k.killContainer(ctx, pod, spec, c, message, until, ip, turn)
		return func() { w.killDone(c, err) }
	})
}

func (w *worker) killDone(c *runtimestate.Container, err error) {
	w.stale.Store(true)
	if err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.Canceled {
		w.warn("kill container", err, "container", c.Name())
		w.eventOnce("kill "+c.Name(), corev1.EventTypeWarning, "FailedKillPod",
			fmt.Sprintf("error killing pod: failed to \"KillContainer\" for %q with KillContainerError: %q", c.Name(), err.Error()))
		w.retryLater(opKey{kind: opKill, of: c.Id}, time.Second, 10*time.Second)
	}
}

// ending says whether a container is being ended, at whatever pace.
func (w *worker) ending(id string) bool {
	for key := range w.ops {
		if (key.kind == opKill || key.kind == opShorten) && key.of == id {
			return true
		}
	}
	return false
}

// letStop lets a sidecar end that waits for its turn.
func (w *worker) letStop(name string) {
	if c := w.container(name); c.mayStop != nil {
		close(c.mayStop)
		c.mayStop = nil
	}
}

func (k *Kubelet) killContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, c *runtimestate.Container, message string, until *stopTime, ip string, turn chan struct{}) error {
	ref := podReference(pod)
	if spec != nil {
		ref = containerReference(pod, spec)
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Killing", message)
	if pod.DeletionTimestamp == nil { // what its user does not expect; events are gone after an hour
		slog.Info("ending a container", "pod", podspec.Format(pod), "message", message)
	}
	if left, _, _ := until.left(); spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && left > 0 {
		cancel, err := preStop(ctx, until, func(ctx context.Context) error {
			return k.hook(ctx, pod, spec, c.Id, ip, spec.Lifecycle.PreStop)
		})
		defer cancel()
		left, grace, _ := until.left()
		switch { // the event does not name the cause, since a hook may print what not everybody may read
		case err != nil:
			k.events.Event(ref, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
			slog.Warn("PreStop hook failed", "pod", podspec.Format(pod), "container", spec.Name, "err", loggedHook(err))
		case left <= 0 && ctx.Err() == nil:
			slog.Warn("PreStop hook not completed in grace period", "pod", podspec.Format(pod), "container", spec.Name, "gracePeriod", grace)
		}
	}
	if turn != nil {
		until.wait(ctx, turn)
	}
	_, err := k.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id, Timeout: until.stop()})
	return err
}

// preStop runs a hook for at most the grace of its container. One that takes longer goes
// on beside the container's end, until cancel: it may use what SIGTERM leaves it.
func preStop(ctx context.Context, until *stopTime, hook func(context.Context) error) (cancel context.CancelFunc, err error) {
	ctx, cancel = context.WithCancel(ctx)
	done, failed := make(chan struct{}), make(chan error, 1)
	run.Go("kubelet: preStop hook", func() {
		defer close(done)
		failed <- run.Catch("kubelet: preStop hook", func() error { return hook(ctx) })
	})
	until.wait(ctx, done)
	if ctx.Err() != nil {
		return cancel, nil // it was told to end
	}
	select {
	case err = <-failed:
	default:
	}
	return cancel, err
}

// stop ends a pod step by step: containers, sandbox and volumes, the object,
// and at last what the runtime still holds.
func (w *worker) stop(ctx context.Context, gone bool) time.Duration {
	for key, o := range w.ops {
		switch key.kind {
		case opStart, opPull, opVolumes, opSandbox, opResize:
			o.cancel()
		}
	}
	running := w.observed.Running()
	for _, c := range running {
		w.kill(ctx, c, "", nil)
	}
	w.letSidecarsStop()
	again := w.tellOverdue(len(running) > 0)
	for _, c := range running {
		if left := w.retryIn(opKey{kind: opKill, of: c.Id}); left > 0 {
			again = min(again, left)
		}
	}
	if len(running) > 0 || w.anyBusy(opStart, opSandbox, opVolumes, opPull) {
		return again
	}
	if w.stale.Load() {
		w.poke() // an operation just ended: look once more before going on
		return again
	}
	if !w.cleaned {
		if left := w.retryIn(opKey{kind: opClean}); left > 0 {
			return min(again, left)
		}
		w.clean(ctx)
		return again
	}
	pod := w.pod
	if !gone && !w.deleted && (pod.DeletionTimestamp != nil || w.base != nil && w.base.DeletionTimestamp != nil) && w.base != nil && !isStatic(pod) {
		if !w.reported && !w.final {
			return again // report wakes the worker when it is through
		}
		if left := w.retryIn(opKey{kind: opDelete}); left > 0 {
			return min(again, left)
		}
		w.begin(ctx, opKey{kind: opDelete}, func(ctx context.Context) func() {
			err := w.k.deletePod(ctx, pod)
			return func() {
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					w.warn("delete pod", err)
					w.retryLater(opKey{kind: opDelete}, 200*time.Millisecond, 10*time.Second)
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

// killTime is how long the runtime may take to end a pod of that grace, seconds: the grace and
// half of it, ten seconds at least.
func killTime(grace int64) time.Duration {
	g := time.Duration(min(grace, math.MaxInt32)) * time.Second
	return max(g+g/2, 10*time.Second)
}

// tellOverdue says that the runtime takes longer than killTime to end a pod that the kubelet
// has decided to end. It returns when to look again.
func (w *worker) tellOverdue(running bool) time.Duration {
	if !running || w.ended.disruption == "" || w.ended.overdue {
		return never
	}
	if left := killTime(nodeGrace(w.pod, w.ended)) - time.Since(w.ended.began); left > 0 {
		return left
	}
	w.ended.overdue = true
	w.k.events.Event(w.eventRef(), corev1.EventTypeWarning, "ExceededGracePeriod", "Container runtime did not kill the pod within specified grace period.")
	return never
}

// letSidecarsStop lets sidecars go: the last one first, once everything that
// came after it has ended.
func (w *worker) letSidecarsStop() {
	if !w.sidecarsWait() {
		return
	}
	for i := range w.pod.Spec.Containers {
		if c := w.observed.Latest(w.pod.Spec.Containers[i].Name); c != nil && c.Running() {
			return
		}
	}
	for i := len(w.pod.Spec.InitContainers) - 1; i >= 0; i-- {
		name := w.pod.Spec.InitContainers[i].Name
		c := w.observed.Latest(name)
		if c == nil || !c.Running() {
			w.container(name).mayStop = nil
			continue
		}
		w.letStop(name)
		return
	}
}

// sidecarsWait says whether a sidecar waits for its turn to end.
func (w *worker) sidecarsWait() bool {
	for _, c := range w.containers {
		if c.mayStop != nil {
			return true
		}
	}
	return false
}

// clean stops the sandboxes and takes the volumes and the cgroup away.
func (w *worker) clean(ctx context.Context) {
	pod := w.pod
	var ids []string
	for _, s := range w.observed.Sandboxes {
		if s.Ready() {
			ids = append(ids, s.Id)
		}
	}
	w.begin(ctx, opKey{kind: opClean}, func(ctx context.Context) func() {
		errs := make(chan error, len(ids))
		for _, id := range ids {
			run.Go("kubelet: stop a sandbox", func() {
				errs <- run.Catch("kubelet: stop a sandbox", func() error {
					_, err := w.k.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
					if status.Code(err) == codes.NotFound {
						err = nil
					}
					return err
				})
			})
		}
		unmount := w.k.volumes.Unmount(ctx, string(pod.UID))
		var kill error
		for range ids {
			if err := <-errs; err != nil {
				kill = errors.Join(kill, err)
			}
		}
		if unmount == nil && kill == nil {
			kill = errors.Join(w.k.removePodCgroup(pod), w.k.users.Release(pod.UID))
		}
		return func() {
			w.stale.Store(true)
			if unmount != nil || kill != nil {
				if ctx.Err() == nil {
					w.tellCleanFailed(unmount, kill)
					w.retryLater(opKey{kind: opClean}, 200*time.Millisecond, 10*time.Second)
				}
				return
			}
			w.cleaned = true
		}
	})
}

// tellCleanFailed says why a pod stays, once for each reason: a driver that is gone
// may never come back.
func (w *worker) tellCleanFailed(unmount, kill error) {
	if unmount != nil {
		w.eventOnce("unmount", corev1.EventTypeWarning, "FailedUnmount", unmount.Error())
	}
	if kill != nil {
		w.eventOnce("kill", corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+kill.Error())
	}
	failed := errors.Join(unmount, kill)
	if text := failed.Error(); w.cleanFailure != text {
		w.cleanFailure = text
		slog.Warn("clean up pod, trying again", "pod", podspec.Format(w.pod), "err", failed)
	}
}

// remove takes away what the runtime holds of a pod that is gone.
func (w *worker) remove(ctx context.Context) time.Duration {
	if w.removed {
		return never // the worker ends with its last operation
	}
	if left := w.retryIn(opKey{kind: opRemove}); left > 0 {
		return left
	}
	v, pod := w.observed, w.pod
	w.begin(ctx, opKey{kind: opRemove}, func(ctx context.Context) func() {
		var failed error
		for _, c := range v.Containers {
			w.k.prober.Forget(c.Id)
			if w.k.cfg.ContainerLogsDir != "" {
				_ = os.Remove(w.k.logLink(pod.Name, pod.Namespace, c.Name(), c.Id))
			}
			if _, err := w.k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id}); err != nil && status.Code(err) != codes.NotFound {
				failed = err
			}
		}
		for _, s := range v.Sandboxes {
			if _, err := w.k.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil && status.Code(err) != codes.NotFound {
				failed = err
			}
		}
		if err := podfile.RemoveAll(ctx, w.k.podLogDir(pod)); err != nil {
			failed = err
		}
		return func() {
			if failed != nil {
				if ctx.Err() == nil {
					w.warn("remove pod from runtime", failed)
				}
				w.retryLater(opKey{kind: opRemove}, time.Second, time.Minute)
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
	var old []*runtimestate.Container
	used := map[string]bool{}
	for _, c := range w.observed.Containers {
		count[c.Name()]++
		if count[c.Name()] > maxContainersPerName && c.Exited() {
			old = append(old, c)
			continue
		}
		used[c.SandboxID] = true
	}
	var boxes []string
	for i, s := range w.observed.Sandboxes {
		if i > 0 && !s.Ready() && !used[s.Id] {
			boxes = append(boxes, s.Id)
		}
	}
	if len(old) == 0 && len(boxes) == 0 {
		return
	}
	pod := w.pod
	w.begin(ctx, opKey{kind: opTrim}, func(ctx context.Context) func() {
		for _, c := range old {
			w.k.removeDead(ctx, pod, c)
		}
		for _, id := range boxes {
			_, _ = w.k.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		}
		return func() { w.stale.Store(true) }
	})
}
