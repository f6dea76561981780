package ttlafterfinished

import "github.com/prometheus/client_golang/prometheus"

var latency = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ttl_after_finished_controller_job_deletion_duration_seconds",
	Help: "[ALPHA] How long after their time Jobs were deleted", Buckets: prometheus.ExponentialBuckets(0.1, 2, 14)})

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{latency} }
