// Package panics is the metric knarr_panics_total: how many panics were recovered in this
// process. It reads what internal/run has counted, and writes nothing.
package panics

import (
	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
)

var total = prometheus.NewDesc("knarr_panics_total",
	"Panics that were recovered since the process began, by the goroutine they ended. Each is in the log with its stack.",
	[]string{"goroutine"}, nil)

// Metric is that of the process, whichever of its components shows it.
func Metric() prometheus.Collector { return collector{} }

type collector struct{}

func (collector) Describe(ch chan<- *prometheus.Desc) { ch <- total }

func (collector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("metrics of panics")
	for name, n := range run.Panics() {
		ch <- prometheus.MustNewConstMetric(total, prometheus.CounterValue, float64(n), name)
	}
}
