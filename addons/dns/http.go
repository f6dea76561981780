package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"knarr/internal/run"
)

// maxHTTP is how many connections for metrics and health there may be at a time.
const maxHTTP = 64

// handler answers as CoreDNS' ports for metrics, health and readiness do, on one.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "OK") })
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-s.began:
			fmt.Fprint(w, "OK")
		default:
			http.Error(w, "kubernetes", http.StatusServiceUnavailable) // the plugin that is not ready
		}
	})
	return mux
}

// serveHTTP answers at the addresses for metrics until ctx ends. Names are answered
// without.
func (s *Server) serveHTTP(ctx context.Context, wg *run.Group) {
	limiter := newFairLimiter(maxHTTP)
	for _, at := range s.cfg.Metrics {
		l, err := s.cfg.Sockets.Listen("tcp", at.String())
		if err != nil {
			slog.WarnContext(ctx, "DNS: no metrics, health or readiness at this address until DNS starts anew; free the port", "address", at, "err", err)
			continue
		}
		srv := &http.Server{
			Handler: s.handler(), ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		}
		wg.Go("DNS: serve metrics", func() { _ = srv.Serve(sharedListener{l, limiter, s.answers}) })
		wg.Go("DNS: end metrics", func() {
			<-ctx.Done()
			srv.Close()
		})
	}
}
