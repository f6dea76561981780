package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
)

var panicsTotal = prometheus.NewDesc("knarr_panics_total",
	"Panics that were recovered since the process began, by the goroutine they ended. Each is in the log with its stack.",
	[]string{"goroutine"}, nil)

// panics collects what internal/run has counted in this process.
type panics struct{}

func (panics) Describe(ch chan<- *prometheus.Desc) { ch <- panicsTotal }

func (panics) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("metrics of panics")
	for name, n := range run.Panics() {
		ch <- prometheus.MustNewConstMetric(panicsTotal, prometheus.CounterValue, float64(n), name)
	}
}
