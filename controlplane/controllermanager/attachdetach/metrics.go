package attachdetach

import "github.com/prometheus/client_golang/prometheus"

var forced = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "attach_detach_controller_attachdetach_controller_forced_detaches",
	Help: "[ALPHA] Volumes that were detached without the node being asked"}, []string{"reason"})

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{forced} }
