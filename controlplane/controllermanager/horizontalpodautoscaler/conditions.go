package horizontalpodautoscaler

import (
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A condition is one without the time it began.
type condition struct {
	kind            autoscalingv2.HorizontalPodAutoscalerConditionType
	status          corev1.ConditionStatus
	reason, message string
}

// conditions are the present ones with some set. One begins when its status
// changes.
func conditions(present []autoscalingv2.HorizontalPodAutoscalerCondition, now metav1.Time, set ...condition) []autoscalingv2.HorizontalPodAutoscalerCondition {
	for _, c := range set {
		i := slices.IndexFunc(present, func(p autoscalingv2.HorizontalPodAutoscalerCondition) bool { return p.Type == c.kind })
		if i < 0 {
			i = len(present)
			present = append(present, autoscalingv2.HorizontalPodAutoscalerCondition{Type: c.kind})
		}
		p := &present[i]
		if p.Status != c.status {
			p.LastTransitionTime = now
		}
		p.Status, p.Reason, p.Message = c.status, c.reason, c.message
	}
	return present
}

// scaledToZero says that this controller took the last replica away.
func scaledToZero(present []autoscalingv2.HorizontalPodAutoscalerCondition) bool {
	return slices.ContainsFunc(present, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
	})
}

func withoutScaledToZero(present []autoscalingv2.HorizontalPodAutoscalerCondition) []autoscalingv2.HorizontalPodAutoscalerCondition {
	return slices.DeleteFunc(present, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero
	})
}
