package dataplane

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The times between two tries to have an address that somebody else has.
const minListen, maxListen = 5 * time.Second, time.Minute

// ServeMetrics answers at /metrics until ctx ends. An address that somebody else has is
// tried again.
func ServeMetrics(ctx context.Context, address string, from prometheus.Gatherer) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	last := ""
	for wait := minListen; ctx.Err() == nil; wait = min(2*wait, maxListen) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			last, wait = "", minListen
			err = srv.Serve(l)
		}
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last { // once, not at each try
			last = text
			slog.WarnContext(ctx, "gateway metrics server, trying again", "address", address, "flag", "--gateway-metrics-bind-address", "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
