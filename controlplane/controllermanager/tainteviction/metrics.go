package tainteviction

import "github.com/prometheus/client_golang/prometheus"

var (
	deletions = prometheus.NewCounter(prometheus.CounterOpts{Name: "taint_eviction_controller_pod_deletions_total",
		Help: "[ALPHA] Pods that were deleted for the taints of their node"})
	latency = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "taint_eviction_controller_pod_deletion_duration_seconds",
		Help: "[ALPHA] How long after their time pods were deleted", Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240}})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{deletions, latency} }
