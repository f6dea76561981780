package prober

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what is counted of probes, under upstream's names.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() metrics {
	return metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prober_probe_total",
			Help: "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result."},
			[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prober_probe_duration_seconds",
			Help: "[ALPHA] Duration in seconds for a probe response."},
			[]string{"probe_type", "container", "pod", "namespace"}),
	}
}

// Metrics are to be registered by whoever serves them.
func (m *Manager) Metrics() []prometheus.Collector {
	return []prometheus.Collector{m.metrics.total, m.metrics.duration}
}

// count counts a probe that has ended, unless its container is forgotten.
func (m *Manager) count(w *watched, k Kind, r outcome, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[w.target.ContainerID] == w {
		m.metrics.count(w.target, k, r, took)
	}
}

func (m metrics) count(t Target, k Kind, r outcome, took time.Duration) {
	result := "successful"
	switch {
	case r.err != nil:
		result = "unknown"
	case !r.ok:
		result = "failed"
	}
	m.total.WithLabelValues(k.String(), result, t.Container.Name, t.Pod.Name, t.Pod.Namespace, string(t.Pod.UID)).Inc()
	if result != "failed" {
		m.duration.WithLabelValues(k.String(), t.Container.Name, t.Pod.Name, t.Pod.Namespace).Observe(took.Seconds())
	}
}

// forget drops what was counted of a container that is probed no more.
func (m metrics) forget(t Target) {
	for k := range kinds {
		for _, result := range []string{"successful", "failed", "unknown"} {
			m.total.DeleteLabelValues(Kind(k).String(), result, t.Container.Name, t.Pod.Name, t.Pod.Namespace, string(t.Pod.UID))
		}
		m.duration.DeleteLabelValues(Kind(k).String(), t.Container.Name, t.Pod.Name, t.Pod.Namespace)
	}
}
