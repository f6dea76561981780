package cronjob

import "github.com/prometheus/client_golang/prometheus"

var skew = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cronjob_controller_job_creation_skew_duration_seconds",
	Help: "[STABLE] How long after its time a Job was created", Buckets: prometheus.ExponentialBuckets(1, 2, 10)})

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{skew} }
