package registry

import (
	"fmt"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

var horizontalPodAutoscalers = &Kind[*autoscalingv2.HorizontalPodAutoscaler]{
	GroupVersionKind: autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
	Plural:           "horizontalpodautoscalers",
	Short:            []string{"hpa"},
	Categories:       []string{"all"},

	Default: defaultAutoscaler,
	Prepare: spec(
		func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
		},
		func(h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Status = old.Status }, nil),
	Validate: validateAutoscaler,
	Columns: []Column[*autoscalingv2.HorizontalPodAutoscaler]{
		nameColumn[*autoscalingv2.HorizontalPodAutoscaler](),
		column("Reference", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["scaleTargetRef"], 0,
			func(h *autoscalingv2.HorizontalPodAutoscaler) any {
				return h.Spec.ScaleTargetRef.Kind + "/" + h.Spec.ScaleTargetRef.Name
			}),
		column("Targets", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["metrics"], 0,
			func(h *autoscalingv2.HorizontalPodAutoscaler) any { return metricTargets(h) }),
		column("MinPods", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["minReplicas"], 0,
			func(h *autoscalingv2.HorizontalPodAutoscaler) any {
				if h.Spec.MinReplicas == nil {
					return "<unset>"
				}
				return strconv.Itoa(int(*h.Spec.MinReplicas))
			}),
		column("MaxPods", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["maxReplicas"], 0,
			func(h *autoscalingv2.HorizontalPodAutoscaler) any { return int64(h.Spec.MaxReplicas) }),
		column("Replicas", "string", autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"], 0,
			func(h *autoscalingv2.HorizontalPodAutoscaler) any { return int64(h.Status.CurrentReplicas) }),
		ageColumn[*autoscalingv2.HorizontalPodAutoscaler](),
	},
	Sub: []Subresource[*autoscalingv2.HorizontalPodAutoscaler]{
		statusOf(func(h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Spec = old.Spec }, validateAutoscalerStatus),
	},
}

func defaultAutoscaler(h *autoscalingv2.HorizontalPodAutoscaler) {
	fillPtr(&h.Spec.MinReplicas, 1)
	if len(h.Spec.Metrics) == 0 {
		h.Spec.Metrics = []autoscalingv2.MetricSpec{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{
					Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(80))},
			},
		}}
	}
	b := h.Spec.Behavior
	if b == nil {
		return
	}
	rules := func(r **autoscalingv2.HPAScalingRules, window *int32, policies ...autoscalingv2.HPAScalingPolicy) {
		if *r == nil {
			*r = &autoscalingv2.HPAScalingRules{}
		}
		fillPtr(&(*r).SelectPolicy, autoscalingv2.MaxChangePolicySelect)
		if (*r).StabilizationWindowSeconds == nil {
			(*r).StabilizationWindowSeconds = window
		}
		if (*r).Policies == nil {
			(*r).Policies = policies
		}
	}
	double := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	four := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}
	rules(&b.ScaleUp, new(int32(0)), four, double)
	rules(&b.ScaleDown, nil, double) // the controller has the window
}

// metricTargets writes the first two metrics as current/target.
func metricTargets(h *autoscalingv2.HorizontalPodAutoscaler) string {
	if len(h.Spec.Metrics) == 0 {
		return "<none>"
	}
	var all []string
	for i := range h.Spec.Metrics {
		var status *autoscalingv2.MetricStatus
		if i < len(h.Status.CurrentMetrics) {
			status = &h.Status.CurrentMetrics[i]
		}
		all = append(all, metricTarget(&h.Spec.Metrics[i], status))
	}
	if len(all) > 2 {
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:2], ", "), len(all)-2)
	}
	return strings.Join(all, ", ")
}

func metricTarget(m *autoscalingv2.MetricSpec, s *autoscalingv2.MetricStatus) string {
	var now *autoscalingv2.MetricValueStatus
	switch {
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		if s != nil && s.External != nil {
			now = &s.External.Current
		}
		return valueOrAverage(&m.External.Target, now, " (avg)")
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		if s != nil && s.Object != nil {
			now = &s.Object.Current
		}
		return valueOrAverage(&m.Object.Target, now, " (avg)")
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		if s != nil && s.Pods != nil {
			now = &s.Pods.Current
		}
		return valueOrAverage(&m.Pods.Target, now, "")
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		if s != nil && s.Resource != nil {
			now = &s.Resource.Current
		}
		return resourceTarget(m.Resource.Name, &m.Resource.Target, now)
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		if s != nil && s.ContainerResource != nil {
			now = &s.ContainerResource.Current
		}
		return resourceTarget(m.ContainerResource.Name, &m.ContainerResource.Target, now)
	}
	return "<unknown type>"
}

func valueOrAverage(t *autoscalingv2.MetricTarget, now *autoscalingv2.MetricValueStatus, suffix string) string {
	current := "<unknown>"
	if t.AverageValue != nil {
		if now != nil && now.AverageValue != nil {
			current = now.AverageValue.String()
		}
		return current + "/" + t.AverageValue.String() + suffix
	}
	if now != nil {
		current = now.Value.String()
	}
	return current + "/" + t.Value.String()
}

func resourceTarget(name corev1.ResourceName, t *autoscalingv2.MetricTarget, now *autoscalingv2.MetricValueStatus) string {
	current := "<unknown>"
	if t.AverageValue != nil {
		if now != nil {
			current = now.AverageValue.String()
		}
		return fmt.Sprintf("%s: %s/%s", name, current, t.AverageValue.String())
	}
	if now != nil && now.AverageUtilization != nil {
		current = fmt.Sprintf("%d%%", *now.AverageUtilization)
	}
	target := "<auto>"
	if t.AverageUtilization != nil {
		target = fmt.Sprintf("%d%%", *t.AverageUtilization)
	}
	return fmt.Sprintf("%s: %s/%s", name, current, target)
}
