package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"knarr/internal/healthz"
	"knarr/node/kubelet/server"
)

const (
	healthzTimeout = 10 * time.Second
	// healthzRetry is how often a port that was taken is tried again.
	healthzRetry = 5 * time.Second
)

// loopOverdue is after what time without a sign of its loop a kubelet stands still: upstream's.
const loopOverdue = 5 * time.Minute

// newHealth answers whether the kubelet works, by upstream's checks in upstream's order.
func (k *Kubelet) newHealth() *healthz.Handler {
	checks := []healthz.Check{
		{Name: "ping", Fails: healthz.Always},
		{Name: "log", Fails: healthz.Always}, // upstream asks whether its log is still flushed; ours is written at once
		healthz.Of("syncloop", k.loopStands),
		healthz.Of("device-plugin", k.pluginsUnserved),
	}
	return healthz.New("kubelet", func(string) []healthz.Check { return checks })
}

// loopStands says that the kubelet does not come to look at its pods any more.
func (k *Kubelet) loopStands() error {
	if last := k.relisted.Load(); last != nil && time.Since(*last) > loopOverdue {
		return errors.New("sync Loop took longer than expected")
	}
	return nil
}

// pluginsUnserved says that no device plugin can register.
func (k *Kubelet) pluginsUnserved() error {
	if err := k.pluginsErr.Load(); err != nil {
		return fmt.Errorf("device registration error: device plugin registration gRPC server failed and no device plugins can register: %w", *err)
	}
	return nil
}

// serveHealthz answers the node's own programs that the kubelet runs. That it
// cannot is no reason to end: another cluster's kubelet may have the port.
func (k *Kubelet) serveHealthz(ctx context.Context) {
	servePlain(ctx, "/healthz", k.cfg.Healthz, server.Healthz())
}

// serveReadOnly answers everybody what they may read.
func (k *Kubelet) serveReadOnly(ctx context.Context) {
	servePlain(ctx, "what everybody may read", k.cfg.ReadOnly, k.metrics.count(server.ReadOnly(host{k})))
}

// servePlain answers at an address without TLS, and tries again if it cannot.
func servePlain(ctx context.Context, what, address string, h http.Handler) {
	if address == "-" {
		return
	}
	for logged := ""; ; {
		err := serveAt(ctx, address, h)
		if ctx.Err() != nil {
			return
		}
		if err != nil && logged != err.Error() {
			logged = err.Error()
			slog.Warn("serve "+what+", trying again; if another program has the port, give this kubelet another one", "address", address, "err", err)
		}
		if !sleep(ctx, healthzRetry) {
			return
		}
	}
}

func serveAt(ctx context.Context, address string, h http.Handler) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: h, ErrorLog: slogLogger(), MaxHeaderBytes: 8 << 10,
		ReadTimeout: healthzTimeout, WriteTimeout: healthzTimeout, IdleTimeout: healthzTimeout,
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
