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
