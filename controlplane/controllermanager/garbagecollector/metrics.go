package garbagecollector

import "github.com/prometheus/client_golang/prometheus"

// syncErrors counts looks at discovery that show no resource, and resources that could not
// be listed in syncWait, each once.
var syncErrors = prometheus.NewCounter(prometheus.CounterOpts{Name: "garbagecollector_controller_resources_sync_error_total",
	Help: "[ALPHA] How often resources could not be found, or not be listed in time"})

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{syncErrors} }
