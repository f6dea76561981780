package horizontalpodautoscaler

import (
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// least is the lower bound of replicas.
func least(spec *autoscalingv2.HorizontalPodAutoscalerSpec) int32 {
	if spec.MinReplicas == nil {
		return 1
	}
	return *spec.MinReplicas
}

// A decision is what the bounds alone say.
type decision struct {
	// measure says that the metrics decide, disabled that nothing does.
	measure, disabled bool
	replicas          int32
	reason            string
}

// bound decides without metrics: what is outside of the bounds goes to the nearer one before
// metrics are asked. zeroed says that this controller took the last replica
// away; what a user took to zero stays there.
func bound(spec *autoscalingv2.HorizontalPodAutoscalerSpec, current int32, zeroed bool) decision {
	low := least(spec)
	switch {
	case current == 0 && zeroed && (low != 0 || awakens(spec)):
		return decision{measure: true}
	case current == 0:
		return decision{disabled: true}
	case current > spec.MaxReplicas:
		return decision{replicas: spec.MaxReplicas, reason: "Current number of replicas above Spec.MaxReplicas"}
	case current < low:
		return decision{replicas: low, reason: belowLeast}
	}
	return decision{measure: true}
}

const belowLeast = "Current number of replicas below Spec.MinReplicas"

// awakens says that a metric is there even without pods.
func awakens(spec *autoscalingv2.HorizontalPodAutoscalerSpec) bool {
	return slices.ContainsFunc(spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}
