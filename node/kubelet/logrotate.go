package kubelet

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podlogs"
	"knarr/node/kubelet/podspec"
)

// rotateLogs keeps the logs of running containers bounded.
func (k *Kubelet) rotateLogs(ctx context.Context) {
	size, _ := resource.ParseQuantity(k.cfg.Settings.ContainerLogMaxSize) // checked by New
	for sleep(ctx, k.cfg.Settings.ContainerLogMonitorInterval.Duration) {
		k.rotateLarge(ctx, size.Value())
	}
}

// rotateLarge moves logs aside that are larger than size.
func (k *Kubelet) rotateLarge(ctx context.Context, size int64) {
	for _, w := range k.all() {
		s := w.shown.Load()
		if s.observed == nil || s.ended {
			continue
		}
		for _, c := range s.observed.Running() {
			if c.LogPath == "" {
				continue
			}
			err := podlogs.Rotate(ctx, c.LogPath, size, int(*k.cfg.Settings.ContainerLogMaxFiles), func(ctx context.Context) error {
				_, err := k.runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: c.Id})
				return err
			})
			if err != nil && ctx.Err() == nil && k.news.isNew("rotate "+c.Id, err.Error()) {
				slog.Warn("Failed to rotate log for container", "pod", podspec.Format(s.pod), "container", c.Name(), "path", c.LogPath, "err", err)
			}
		}
	}
}
