package podgc

import "github.com/prometheus/client_golang/prometheus"

var (
	forced = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pod_gc_collector_force_delete_pods_total",
		Help: "[ALPHA] Pods that were deleted by force"}, []string{"namespace", "reason"})
	forcedErrors = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pod_gc_collector_force_delete_pod_errors_total",
		Help: "[ALPHA] Pods that could not be deleted by force"}, []string{"namespace", "reason"})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{forced, forcedErrors} }

// observe counts a pod that was deleted, or could not be.
func observe(namespace, reason string, err error) {
	if err != nil {
		forcedErrors.WithLabelValues(namespace, reason).Inc()
		return
	}
	forced.WithLabelValues(namespace, reason).Inc()
}
