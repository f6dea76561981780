package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"knarr/node/kubelet/server"
)

const (
	healthzTimeout = 10 * time.Second
	// healthzRetry is how often a port that was taken is tried again.
	healthzRetry = 5 * time.Second
)

// serveHealthz answers the node's own programs that the kubelet runs. That it
// cannot is no reason to end: another cluster's kubelet may have the port.
func (k *Kubelet) serveHealthz(ctx context.Context) {
	if k.cfg.Healthz == "-" {
		return
	}
	for logged := ""; ; {
		err := serveHealthz(ctx, k.cfg.Healthz)
		if ctx.Err() != nil {
			return
		}
		if err != nil && logged != err.Error() {
			logged = err.Error()
			slog.Warn("serve /healthz, trying again; if another program has the port, give this kubelet another healthz port", "address", k.cfg.Healthz, "err", err)
		}
		if !sleep(ctx, healthzRetry) {
			return
		}
	}
}

func serveHealthz(ctx context.Context, address string) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: server.Healthz(), ErrorLog: slogLogger(), MaxHeaderBytes: 8 << 10,
		ReadTimeout: healthzTimeout, WriteTimeout: healthzTimeout, IdleTimeout: healthzTimeout,
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
