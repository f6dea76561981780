package metrics

import (
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health counts the results of health checks; /metrics/slis tells them.
type Health struct {
	series  series[[2]string, healthCounts]
	handler http.Handler
}

type healthCounts struct {
	last      atomic.Bool
	good, bad atomic.Uint64
}

var (
	healthNow   = desc("kubernetes_healthcheck", "[STABLE] Whether a health check passed when it was last made.", "name", "type")
	healthTotal = desc("kubernetes_healthchecks_total", "[STABLE] Health checks made, by their results.", "name", "status", "type")
)

func newHealth() *Health {
	h := &Health{}
	r := prometheus.NewRegistry()
	r.MustRegister(h)
	h.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return h
}

// ObserveCheck counts one check of livez, readyz or healthz.
func (h *Health) ObserveCheck(name, kind string, ok bool) {
	n := h.series.get([2]string{name, kind}, func() *healthCounts { return &healthCounts{} })
	n.last.Store(ok)
	if ok {
		n.good.Add(1)
	} else {
		n.bad.Add(1)
	}
}

// ServeHTTP is /metrics/slis.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.handler.ServeHTTP(w, r) }

// Describe leaves the registry to find out.
func (h *Health) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts.
func (h *Health) Collect(out chan<- prometheus.Metric) {
	h.series.each(func(k [2]string, n *healthCounts) {
		now := 0.0
		if n.last.Load() {
			now = 1
		}
		out <- gauge(healthNow, now, k[0], k[1])
		if good := n.good.Load(); good > 0 {
			out <- counter(healthTotal, good, k[0], "success", k[1])
		}
		if bad := n.bad.Load(); bad > 0 {
			out <- counter(healthTotal, bad, k[0], "error", k[1])
		}
	})
}
