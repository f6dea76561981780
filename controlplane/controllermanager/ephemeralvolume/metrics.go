package ephemeralvolume

import "github.com/prometheus/client_golang/prometheus"

var (
	creations = prometheus.NewCounter(prometheus.CounterOpts{Name: "ephemeral_volume_controller_create_total",
		Help: "[ALPHA] Claims that were to be made for pods"})
	failures = prometheus.NewCounter(prometheus.CounterOpts{Name: "ephemeral_volume_controller_create_failures_total",
		Help: "[ALPHA] Claims that could not be made for pods"})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{creations, failures} }
