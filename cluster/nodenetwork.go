package cluster

import (
	"context"
	"log/slog"
	"time"

	"knarr/node/cni"
)

// The times between two tries to set up the pod network, and between two looks
// whether it is still there: a firewall that starts anew flushes all tables, and
// with them what keeps pods from speaking for each other.
const (
	minInstall, maxInstall = time.Second, time.Minute
	lookAtNetwork          = 20 * time.Second
)

// install sets up the pod network, as often as it takes; an error is logged
// when it is another than before.
func (n *node) install(ctx context.Context, try func() error) bool {
	for wait := minInstall; ; wait = min(2*wait, maxInstall) {
		err := try()
		if n.health.set("pod network", err) && err != nil {
			slog.ErrorContext(ctx, "set up the pod network, trying again until it succeeds", "err", err)
		}
		if err == nil {
			return true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
}

// keepInstalled repairs the pod network when somebody takes it away.
func (n *node) keepInstalled(ctx context.Context, cfg cni.Config) {
	look := time.NewTicker(lookAtNetwork)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if err := cni.Intact(cfg); err != nil {
			slog.WarnContext(ctx, "repair the pod network", "err", err)
			n.install(ctx, func() error { return cni.Install(cfg) })
		}
	}
}
