package features

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is kubernetes_feature_enabled: which features are on, of those that can be turned on
// or off here. Of all others only upstream's default is known, which says nothing about what
// runs here.
func Metric(set Set, names []string) prometheus.Collector {
	m := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_feature_enabled",
		Help: "[BETA] Whether a feature is on, of those that can be turned on or off"}, []string{"name", "stage"})
	for _, name := range names {
		stage, on := strings.ToUpper(Gates()[name].Stage), 0.0
		if stage == "GA" {
			stage = "" // as upstream has it
		}
		if set.Enabled(name) {
			on = 1
		}
		m.WithLabelValues(name, stage).Set(on)
	}
	return m
}
