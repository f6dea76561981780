package horizontalpodautoscaler

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const metricsPrefix = "horizontal_pod_autoscaler_controller_"

var (
	took            = prometheus.ExponentialBuckets(0.001, 2, 15)
	reconciliations = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "reconciliations_total",
		Help: "[BETA] Looks at an autoscaler, by what was done (scale_up, scale_down, none) and whose error there was (spec, internal, none)"}, []string{"action", "error"})
	reconciliationTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "reconciliation_duration_seconds",
		Help: "[BETA] How long looks at an autoscaler took", Buckets: took}, []string{"action", "error"})
	computations = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "metric_computation_total",
		Help: "[BETA] Metrics that were computed, by what each asks for"}, []string{"action", "error", "metric_type"})
	computationTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "metric_computation_duration_seconds",
		Help: "[BETA] How long a metric took to compute", Buckets: took}, []string{"action", "error", "metric_type"})
	number = prometheus.NewGauge(prometheus.GaugeOpts{Name: metricsPrefix + "num_horizontal_pod_autoscalers", Help: "[ALPHA] Autoscalers"})
	wanted = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricsPrefix + "desired_replicas", Help: "[ALPHA] Replicas that an autoscaler wants"},
		[]string{"namespace", "hpa_name"})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{reconciliations, reconciliationTook, computations, computationTook, number, wanted}
}

// action is what a change of replicas is called. Pure.
func action(from, to int32) string {
	switch {
	case to > from:
		return "scale_up"
	case to < from:
		return "scale_down"
	}
	return "none"
}

// fault is whose an error is: the autoscaler's own, as its conditions say, or not. Pure.
func fault(conditions []autoscalingv2.HorizontalPodAutoscalerCondition, err error) string {
	if err == nil {
		return "none"
	}
	for _, c := range conditions {
		if c.Status == corev1.ConditionFalse && invalid(c.Reason) {
			return "spec"
		}
	}
	return "internal"
}

func invalid(reason string) bool { return strings.HasPrefix(reason, "Invalid") }

// observe counts a look at an autoscaler.
func observe(was, is *autoscalingv2.HorizontalPodAutoscaler, began time.Time, err error) {
	did := "none"
	if at := is.Status.LastScaleTime; at != nil && !at.Equal(was.Status.LastScaleTime) {
		did = action(is.Status.CurrentReplicas, is.Status.DesiredReplicas)
	}
	whose := fault(is.Status.Conditions, err)
	reconciliations.WithLabelValues(did, whose).Inc()
	reconciliationTook.WithLabelValues(did, whose).Observe(time.Since(began).Seconds())
	wanted.WithLabelValues(is.Namespace, is.Name).Set(float64(is.Status.DesiredReplicas))
}

// observeMetric counts one metric of an autoscaler.
func observeMetric(kind autoscalingv2.MetricSourceType, current int32, p proposal, began time.Time) {
	asks, whose := action(current, p.replicas), "none"
	if p.err != nil {
		asks, whose = "none", "internal"
		if invalid(p.reason) {
			whose = "spec"
		}
	}
	computations.WithLabelValues(asks, whose, string(kind)).Inc()
	computationTook.WithLabelValues(asks, whose, string(kind)).Observe(time.Since(began).Seconds())
}

// unobserve drops what is told of an autoscaler that is gone.
func unobserve(name cache.ObjectName) { wanted.DeleteLabelValues(name.Namespace, name.Name) }
