package endpointslicemirroring

import "github.com/prometheus/client_golang/prometheus"

const metricsPrefix = "endpoint_slice_mirroring_controller_"

var (
	written = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "changes",
		Help: "[ALPHA] EndpointSlices written: create, update, delete"}, []string{"operation"})
	syncTook = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "endpoints_sync_duration",
		Help: "[ALPHA] How many seconds a look at an Endpoints took", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)})
	skipped = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "addresses_skipped_per_sync",
		Help: "[ALPHA] Addresses that were not mirrored: invalid ones, and too many", Buckets: prometheus.ExponentialBuckets(2, 2, 15)})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{written, syncTook, skipped} }
