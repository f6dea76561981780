// Package metrics counts what an API server does, under upstream's names. It
// reads what the filters and handlers tell it, and writes the text of /metrics.
package metrics

import (
	"net/http"
	goruntime "runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/metrics/legacyregistry"
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

// New begins to count.
func New(v *version.Info) *Metrics {
	m := &Metrics{
		Requests: newRequests(), Watches: newWatches(), Admission: newAdmission(), Store: newStore(),
		Access: newAccess(), registry: prometheus.NewRegistry(),
	}
	m.registry.MustRegister(m.Requests, m.Watches, m.Admission, m.Store, m.Access, build(v), panics{})
	// The libraries count into two registries of their own, some of it twice.
	all := distinct{m.registry, prometheus.DefaultGatherer, legacyregistry.DefaultGatherer}
	m.handler = promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return m
}

// Also adds what another part counts.
func (m *Metrics) Also(c prometheus.Collector) { m.registry.MustRegister(c) }

// ServeHTTP is /metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// build says which program this is.
func build(v *version.Info) prometheus.Collector {
	if v == nil {
		v = &version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"}
	}
	platform := v.Platform
	if platform == "" {
		platform = goruntime.GOOS + "/" + goruntime.GOARCH
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "[BETA] Always 1; its labels say which version of which program this is, and what it was built with.",
		ConstLabels: prometheus.Labels{
			"major": v.Major, "minor": v.Minor, "git_version": v.GitVersion, "git_commit": v.GitCommit,
			"git_tree_state": v.GitTreeState, "build_date": v.BuildDate, "go_version": goruntime.Version(),
			"compiler": goruntime.Compiler, "platform": platform,
		},
	}, func() float64 { return 1 })
}
