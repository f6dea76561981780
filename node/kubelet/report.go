package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/internal/equal"
	"knarr/node/kubelet/podstatus"
)

// report writes the status to the API server if it is not as it should be.
func (w *worker) report(ctx context.Context, gone bool) time.Duration {
	pod := w.pod
	s := podstatus.Compute(w.statusInput())
	w.k.healthOfDevices(w.uid, &s)
	w.k.metrics.terminated(w.last, &s)
	w.last = &s
	w.running(&s)
	ended := w.ended != nil && w.cleaned
	w.shown.Store(&shown{pod: pod, status: &s, observed: w.observed, volumes: w.volumes, ended: ended, stage: w.stage()})
	if ended {
		w.over.open()
	}
	if w.base == nil || gone || w.deleted {
		return never
	}
	key := opKey{kind: opStatus}
	if left := w.retryIn(key); left > 0 {
		return left
	}
	terminal := w.statusTerminal()
	if w.final && pod.DeletionTimestamp != nil {
		return never // the object is about to go; its status is not read any more
	}
	if equal.Objects(&w.base.Status, &s) {
		w.reported, w.final, w.differs = true, terminal, time.Time{}
		return never
	}
	w.reported = false
	if left := w.holdStatus(&s); left > 0 {
		return left
	}
	w.differs = time.Time{}
	base := w.base
	w.begin(ctx, key, func(ctx context.Context) func() {
		began := time.Now()
		got, err := w.k.patchStatus(ctx, base, &s)
		w.k.metrics.statusTook.Observe(time.Since(began).Seconds())
		return func() {
			switch {
			case err == nil:
				w.final = terminal
				w.succeeded(key)
				if newer(got, w.base) {
					w.base = got
				}
			case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
				w.retryLater(key, time.Second, 10*time.Second)
			case ctx.Err() == nil:
				w.warn("patch pod status", err)
				w.retryLater(key, 200*time.Millisecond, 10*time.Second)
			}
		}
	})
	return never
}

const (
	// statusHold is how long the steps of a pod's start may take to be shown. One that
	// is there sooner takes their place: a warm pod has four of them in a tenth of a
	// second, of which each costs the API server and everybody who watches pods.
	statusHold = 100 * time.Millisecond
	// replaceHold is how long the next container in the place of one that was told to end may
	// take before the pod is shown as not ready.
	replaceHold = time.Second
)

// holdStatus says how long a status is held back: while the pod is being started
// and all that is new is how far it got, or one container takes the place of another.
// What a user waits for, or has to see to, is shown at once.
func (w *worker) holdStatus(s *corev1.PodStatus) time.Duration {
	hold := statusHold
	switch {
	case w.replacing(s):
		hold = replaceHold
	case !w.isStarting(s):
		return 0
	}
	if w.differs.IsZero() {
		w.differs = time.Now()
	}
	return time.Until(w.differs.Add(hold))
}

// isStarting says whether the pod is being started and none of its containers has run.
func (w *worker) isStarting(s *corev1.PodStatus) bool {
	starting := s.Phase == corev1.PodPending && w.ended == nil && w.pod.DeletionTimestamp == nil && w.anyBusy(opVolumes, opSandbox, opStart, opPull)
	for _, all := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range all {
			state, last := &all[i].State, &all[i].LastTerminationState
			starting = starting && last.Terminated == nil && state.Running == nil && state.Terminated == nil &&
				(state.Waiting == nil || state.Waiting.Reason == "ContainerCreating" || state.Waiting.Reason == "PodInitializing")
		}
	}
	return starting
}

// replacing says whether a container has ended whose place another is about to take, and
// which is shown as running until then.
func (w *worker) replacing(s *corev1.PodStatus) bool {
	if w.ended != nil || w.pod.DeletionTimestamp != nil {
		return false
	}
	shown := w.settled()
	for i := range s.ContainerStatuses {
		c := shown.Latest(s.ContainerStatuses[i].Name)
		if s.ContainerStatuses[i].State.Running != nil && c != nil && c.Replaced && !c.Running() {
			return true
		}
	}
	return false
}

// statusTerminal says whether nothing of the pod runs or will run any more.
func (w *worker) statusTerminal() bool {
	return w.ended != nil && len(w.observed.Running()) == 0 && !w.anyBusy(opStart, opSandbox)
}

func (w *worker) statusInput() podstatus.Input {
	in := podstatus.Input{
		Pod: w.pod, Old: w.last, Observed: w.settled(), Waiting: w.waits(), Messages: w.messages(),
		RecursiveReadOnly: func() bool { return w.k.recursiveReadOnly(w.pod) },
		Unmounted:         w.volumes == nil && w.ended == nil && len(w.observed.Containers) == 0,
		Terminal:          w.statusTerminal(),
		RuntimeName:       w.k.runtimeName(), PodIPs: w.k.sortIPs(w.ips), Now: time.Now(),
		Started: w.k.started, Ready: w.k.ready, ResizePending: w.resizePending, Resizing: w.resizing,
	}
	if e := w.ended; e != nil {
		in.Ended = &podstatus.Ending{Reason: e.reason, Message: e.message, Rejected: e.rejected, Disruption: e.disruption, Why: e.why}
	}
	switch {
	case w.base != nil:
		in.API = &w.base.Status
	case !isStatic(w.pod):
		in.API = &w.pod.Status
	}
	for _, ip := range w.k.cfg.NodeIPs {
		in.HostIPs = append(in.HostIPs, ip.String())
	}
	if w.ended != nil && len(in.PodIPs) == 0 {
		for _, ip := range w.last.PodIPs { // where it was stays known
			in.PodIPs = append(in.PodIPs, ip.IP)
		}
	}
	return in
}
