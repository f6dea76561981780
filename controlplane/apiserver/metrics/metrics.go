// Package metrics counts what an API server does, under upstream's names. It
// reads what the filters and handlers tell it, and writes the text of /metrics.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/internal/buildinfo"
	"knarr/internal/panics"
	"knarr/internal/version"
)

// Metrics are those of one API server. All methods may be called at once; a
// nil part counts nothing.
type Metrics struct {
	Requests  *Requests
	Watches   *Watches
	Admission *Admission
	Store     *Store
	Access    *Access

	registry *prometheus.Registry
	handler  http.Handler
}

// New begins to count; v is which program this is, by default one like this version of
// Kubernetes. Others are shown beside what it counts.
func New(v *apiversion.Info, others ...prometheus.Collector) *Metrics {
	if v == nil {
		v = buildinfo.Of(version.Kubernetes)
	}
	m := &Metrics{
		Requests: newRequests(), Watches: newWatches(), Admission: newAdmission(), Store: newStore(),
		Access: newAccess(), registry: prometheus.NewRegistry(),
	}
	m.registry.MustRegister(m.Requests, m.Watches, m.Admission, m.Store, m.Access, buildinfo.Metric(v), panics.Metric())
	m.registry.MustRegister(others...)
	// The libraries count into two registries of their own, some of it twice.
	all := distinct{m.registry, prometheus.DefaultGatherer, legacyregistry.DefaultGatherer}
	m.handler = promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return m
}

// Also adds what another part counts.
func (m *Metrics) Also(c prometheus.Collector) { m.registry.MustRegister(c) }

// ServeHTTP is /metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }
