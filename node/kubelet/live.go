package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/volume"
)

// live brings a pod that should run closer to running.
func (w *worker) live(ctx context.Context) time.Duration {
	w.allocate() // first, for containers that are about to start
	pod := w.pod
	again := never
	if d := w.deadline(pod); d != nil {
		again = min(again, *d)
	}
	a := plan(pod, w.observed, w.k)
	if len(a.reset) > 0 {
		return min(again, w.reset(ctx, a))
	}
	if a.finish {
		if len(w.observed.Running()) == 0 || !anySpecRunning(pod, w.observed) {
			w.ended = &ending{began: time.Now()}
			w.poke()
			return again
		}
	}
	if a.replace && len(w.observed.Sandboxes) > 0 && !w.busy(opKey{kind: opSandbox}) {
		// Everything of the old sandbox stops before a new one is made.
		for _, c := range w.observed.Running() {
			w.kill(ctx, c, "", nil)
		}
		if len(w.observed.Running()) > 0 {
			return again
		}
		for _, s := range w.observed.Sandboxes {
			if s.Ready() {
				w.stopSandbox(ctx, s.Id)
			}
		}
		if w.anyBusy(opStopSandbox) {
			return again
		}
	}
	for _, kl := range a.kill {
		if c := w.observed.ByID(kl.id); c != nil {
			w.instance(kl.id).replaced = kl.again
			w.kill(ctx, c, kl.message, probeGrace(pod, kl))
		}
	}
	if !w.k.network.Load() && !pod.Spec.HostNetwork && a.replace {
		w.eventOnce("network", corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+w.k.networkMissing())
		return min(again, 5*time.Second)
	}
	if err := w.ensureCgroup(); err != nil {
		w.eventOnce("cgroup", corev1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
		return min(again, 5*time.Second)
	}
	if w.dirty.Load() {
		// What containers lack may have come.
		for name, c := range w.containers {
			if c.missesConfig() {
				w.retryNow(opKey{kind: opStart, of: name})
			}
		}
	}
	if !w.ensureDevices(ctx) {
		return again
	}
	again = min(again, w.ensureVolumes(ctx))
	if w.volumes != nil {
		again = min(again, w.tellMissingSecrets())
	}
	if a.replace {
		again = min(again, w.ensureSandbox(ctx, a.attempt))
	}
	again = min(again, w.startContainers(ctx, a))
	w.trim(ctx)
	return min(again, w.resize(ctx))
}

func (w *worker) ensureCgroup() error {
	if w.cgroup {
		return nil
	}
	limits := w.k.podLimits(w.pod)
	if w.desired.Generation > 1 && len(w.observed.Running()) > 0 {
		if s, ok := w.k.podMemory(w.pod); ok && uint64(limits.Memory) < s.Limit {
			limits.Memory = 0 // a resize lowers it, which looks first at what is used
		}
	}
	if err := w.k.ensurePodCgroup(w.pod, limits); err != nil {
		return err
	}
	w.cgroup, w.limits = true, limits
	return nil
}

// ensureVolumes mounts the volumes and keeps their contents up to date.
func (w *worker) ensureVolumes(ctx context.Context) time.Duration {
	due := w.volumes == nil || w.dirty.Load() || !w.refresh.IsZero() && !time.Now().Before(w.refresh)
	key := opKey{kind: opVolumes}
	if left := w.retryIn(key); left > 0 && !w.dirty.Load() {
		return left
	}
	if due && !w.busy(key) {
		w.dirty.Store(false)
		pod, ips := w.pod, w.podIPs()
		w.begin(ctx, key, func(ctx context.Context) func() {
			dir := w.k.volumes.PodDir(string(pod.UID))
			err := podDirsError(makePodDirs(dir))
			var out map[string]volume.Mounted
			var next time.Time
			if err == nil {
				out, next, err = w.k.volumes.Mount(ctx, pod, criconfig.NewDownward(w.k.nodeConfig(), pod, ips, w.k.allocatable()))
			}
			return func() { w.mounted(pod, out, next, err) }
		})
	}
	if w.refresh.IsZero() {
		return never
	}
	return time.Until(w.refresh)
}

func (w *worker) mounted(pod *corev1.Pod, out map[string]volume.Mounted, next time.Time, err error) {
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return
		}
		w.volumeErr = err
		if full := (*volume.LimitError)(nil); errors.As(err, &full) && len(w.observed.Containers) == 0 {
			w.refuse("VolumeAttachmentLimitExceeded", full.Error())
			return
		}
		if errors.Is(err, volume.ErrTimedOut) {
			w.succeeded(opKey{kind: opVolumes}) // it has waited long enough
		}
		w.retryLater(opKey{kind: opVolumes}, 500*time.Millisecond, 2*time.Minute)
		for _, e := range flatten(err) {
			if errors.Is(e, volume.ErrTimedOut) { // no event, as upstream has none
				if w.k.news.IsNew("volume "+podspec.Format(pod), e.Error()) {
					slog.Warn("waiting for volumes", "pod", podspec.Format(pod), "err", e)
				}
				continue
			}
			reason := "FailedMount"
			if strings.HasPrefix(e.Error(), "MapVolume.") {
				reason = "FailedMapVolume"
			}
			if errors.Is(e, errPodDirs) {
				reason = "Failed"
			}
			w.eventOnce(volumeEvent+e.Error(), corev1.EventTypeWarning, reason, e.Error())
		}
		return
	}
	w.volumes, w.refresh, w.volumeErr = out, next, nil
	w.succeeded(opKey{kind: opVolumes})
	maps.DeleteFunc(w.lastEvents, func(about string, _ pastEvent) bool { return strings.HasPrefix(about, volumeEvent) })
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

const (
	// eventAgain is after what time the same event about a pod is written again, and counted:
	// about as often as upstream tries what fails. One that is not looks like something that
	// is over.
	eventAgain = 2 * time.Minute
	// stateEventAgain is that of a state that stays: events are gone after an hour, and a pod
	// may wait for longer.
	stateEventAgain = 30 * time.Minute
	// volumeEvent begins what events of volumes are about.
	volumeEvent = "volume "
)

// A pastEvent is one that was written.
type pastEvent struct {
	message string
	at      time.Time
}

// eventOnce emits an event about the pod unless the last one about key has the same
// words, and is not long ago.
func (w *worker) eventOnce(key, kind, reason, message string) {
	w.eventAfter(eventAgain, key, kind, reason, message)
}

func (w *worker) eventAfter(again time.Duration, key, kind, reason, message string) {
	if last := w.lastEvents[key]; last.message == message && time.Since(last.at) < again {
		return
	}
	if len(w.lastEvents) > 64 {
		clear(w.lastEvents)
	}
	w.lastEvents[key] = pastEvent{message, time.Now()}
	w.k.events.Event(w.eventRef(), kind, reason, message)
}

func (w *worker) ensureSandbox(ctx context.Context, attempt uint32) time.Duration {
	key := opKey{kind: opSandbox}
	if left := w.retryIn(key); left > 0 {
		return left
	}
	pod := w.pod
	replaced := len(w.observed.Sandboxes) > 0
	began := w.begin(ctx, key, func(ctx context.Context) func() {
		cfg, handler, err := w.k.sandboxConfig(ctx, pod, attempt)
		if err == nil {
			err = os.MkdirAll(cfg.LogDirectory, 0o755)
		}
		if err == nil {
			starting, cancel := startContext(ctx)
			_, err = w.k.runtime.RunPodSandbox(starting, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
			cancel()
		}
		return func() {
			w.stale.Store(true)
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				w.retryLater(key, time.Second, 10*time.Second)
				w.k.events.Event(w.eventRef(), corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
				return
			}
			w.sandbox = cfg
			w.succeeded(key)
		}
	})
	if began && replaced {
		w.k.events.Event(w.eventRef(), corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	return never
}

func (w *worker) stopSandbox(ctx context.Context, id string) {
	w.begin(ctx, opKey{kind: opStopSandbox, of: id}, func(ctx context.Context) func() {
		_, err := w.k.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return func() {
			w.stale.Store(true)
			if err != nil && ctx.Err() == nil {
				w.eventOnce("kill", corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
			}
		}
	})
}
