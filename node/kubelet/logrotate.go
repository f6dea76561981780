package kubelet

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/podlogs"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// rotateLogs keeps the logs of running containers bounded.
func (k *Kubelet) rotateLogs(ctx context.Context) {
	size, _ := resource.ParseQuantity(k.cfg.Settings.ContainerLogMaxSize) // checked by New
	for sleep(ctx, k.cfg.Settings.ContainerLogMonitorInterval.Duration) {
		k.rotateLarge(ctx, size.Value())
	}
}

// rotateLarge moves logs aside that are larger than size, as many at once as the settings say.
func (k *Kubelet) rotateLarge(ctx context.Context, size int64) {
	type one struct {
		pod       *corev1.Pod
		container *runtimestate.Container
	}
	var all []one
	for _, w := range k.all() {
		s := w.shown.Load()
		if s.observed == nil || s.ended {
			continue
		}
		for _, c := range s.observed.Running() {
			if c.LogPath != "" {
				all = append(all, one{s.pod, c})
			}
		}
	}
	run.Each("kubelet: log rotation", int(*k.cfg.Settings.ContainerLogMaxWorkers), len(all), func(i int) error {
		k.rotate(ctx, all[i].pod, all[i].container, size)
		return nil
	})
}

// rotate moves a container's log aside if it is larger than size.
func (k *Kubelet) rotate(ctx context.Context, pod *corev1.Pod, c *runtimestate.Container, size int64) {
	err := podlogs.Rotate(ctx, c.LogPath, size, int(*k.cfg.Settings.ContainerLogMaxFiles), func(ctx context.Context) error {
		_, err := k.runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: c.Id})
		return err
	})
	if err != nil && ctx.Err() == nil && k.news.IsNew("rotate "+c.Id, err.Error()) {
		slog.Warn("Failed to rotate log for container", "pod", podspec.Format(pod), "container", c.Name(), "path", c.LogPath, "err", err)
	}
}
