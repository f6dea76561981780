package replicaset

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/controllermanager/pods"
)

var ageRatio = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "replicaset_controller_sorting_deletion_age_ratio",
	Help:    "[ALPHA] How many times as old as the youngest ready pod those are that go while others stay; less than 2 is well",
	Buckets: prometheus.ExponentialBuckets(0.25, 2, 6)})

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{ageRatio} }

// observe counts the pods that are to go of those that are there.
func observe(active, remove []*corev1.Pod, now time.Time) {
	for _, ratio := range ratios(active, remove, now) {
		ageRatio.Observe(ratio)
	}
}

// ratios are how many times as old as the youngest ready pod the ready ones are that go, if
// others stay; whole numbers, as upstream has them. Pure.
func ratios(active, remove []*corev1.Pod, now time.Time) (all []float64) {
	if len(remove) == 0 || len(remove) == len(active) {
		return nil
	}
	var youngest time.Time
	for _, p := range active {
		if at := p.CreationTimestamp.Time; at.After(youngest) && pods.Ready(p) {
			youngest = at
		}
	}
	least := now.Sub(youngest).Milliseconds()
	if least <= 0 {
		return nil // made this very moment
	}
	for _, p := range remove {
		if pods.Ready(p) {
			all = append(all, float64(now.Sub(p.CreationTimestamp.Time).Milliseconds()/least))
		}
	}
	return all
}
