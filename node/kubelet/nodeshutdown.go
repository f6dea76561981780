package kubelet

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/shutdown"
	"knarr/node/kubelet/statefile"
)

// shutdownState is what outlives a shutdown of the node.
type shutdownState struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
}

func (k *Kubelet) shutdownFile() string {
	return filepath.Join(k.cfg.RootDir, "graceful_node_shutdown_state")
}

// delayShutdown lets pods end before the node does.
func (k *Kubelet) delayShutdown(ctx context.Context) {
	groups := shutdown.Groups(k.cfg.Settings)
	if len(groups) == 0 {
		if err := shutdown.Forget(k.logindDir, k.cfg.RootDir); err != nil {
			slog.Warn("let logind wait as it did before", "err", err)
		}
		return
	}
	var last shutdownState
	if err := statefile.Read(k.shutdownFile(), &last); err == nil {
		k.metrics.shutdownTimes(last.StartTime, last.EndTime)
	}
	c := shutdown.Config{
		Address: k.busAddress, Dir: k.logindDir, Owner: k.cfg.RootDir, Delay: shutdown.Total(groups),
		Begin:     func(ctx context.Context) { k.shutDown(ctx, groups) },
		Cancelled: k.shutdownCancelled,
	}
	k.serveSocket(ctx, "shutdowns of the node do not wait for pods", func(ctx context.Context) error { return shutdown.Run(ctx, c) })
}

// shutDown ends all pods, one group after the other.
func (k *Kubelet) shutDown(ctx context.Context, groups []shutdown.Group) {
	k.events.Event(k.nodeRef(), corev1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
	k.shuttingDown.Store(true)
	k.wakeNode()
	state := shutdownState{StartTime: time.Now()}
	k.keepShutdown(state)
	workers := map[*corev1.Pod]*worker{}
	var pods []*corev1.Pod
	for _, w := range k.all() {
		if w.active() {
			pod := w.shown.Load().pod
			workers[pod], pods = w, append(pods, pod)
		}
	}
	for _, g := range shutdown.Assign(groups, pods) {
		var ending []*worker
		for _, pod := range g.Pods {
			slog.Info("ending a pod before the node shuts down", "pod", podspec.Format(pod), "period", g.Period)
			k.endForShutdown(workers[pod], pod, g.Period)
			ending = append(ending, workers[pod])
		}
		waitEnded(ctx, ending, g.Period)
	}
	state.EndTime = time.Now()
	k.keepShutdown(state)
}

// endForShutdown ends a pod within the period of its group.
func (k *Kubelet) endForShutdown(w *worker, pod *corev1.Pod, period time.Duration) {
	grace := int64(period / time.Second)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = min(grace, *own)
	}
	w.end(&ending{
		reason: "Terminated", message: "Pod was terminated in response to imminent node shutdown.",
		grace: &grace, disruption: corev1.PodReasonTerminationByKubelet,
	})
}

// waitEnded waits until pods have ended, their volumes too, but no longer than a period.
func waitEnded(ctx context.Context, workers []*worker, period time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	for _, w := range workers {
		if !w.over.wait(ctx) {
			return
		}
	}
}

func (k *Kubelet) keepShutdown(s shutdownState) {
	k.metrics.shutdownTimes(s.StartTime, s.EndTime)
	if err := statefile.Write(k.shutdownFile(), s, true); err != nil {
		slog.Warn("Failed to store graceful shutdown state", "err", err)
	}
}

// shutdownCancelled lets the node take pods again.
func (k *Kubelet) shutdownCancelled(context.Context) {
	k.events.Event(k.nodeRef(), corev1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown cancellation")
	k.shuttingDown.Store(false)
	k.wakeNode()
}
