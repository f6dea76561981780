package registry

import (
	"context"
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What version 1 has no field for is in annotations there.
const (
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
)

var oldHorizontalPodAutoscalers = &Kind[*autoscalingv1.HorizontalPodAutoscaler]{
	GroupVersionKind: autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
	Plural:           "horizontalpodautoscalers",
	Short:            []string{"hpa"},
	Categories:       []string{"all"},

	Hub: func() Resource { return horizontalPodAutoscalers },
	FromHub: func(o Object) *autoscalingv1.HorizontalPodAutoscaler {
		return autoscalerToV1(o.(*autoscalingv2.HorizontalPodAutoscaler))
	},
	ToHub: func(h *autoscalingv1.HorizontalPodAutoscaler) Object { return autoscalerFromV1(h) },

	// Going to the hub and back settles the annotations.
	Default: inHub(func(h, _ *autoscalingv2.HorizontalPodAutoscaler) { fillPtr(&h.Spec.MinReplicas, 1) }),
	Prepare: func(ctx context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) {
		inHubOf(old, func(h, old *autoscalingv2.HorizontalPodAutoscaler) { horizontalPodAutoscalers.Prepare(ctx, h, old) })(h)
	},
	Validate: func(ctx context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
		return validateAutoscaler(ctx, autoscalerFromV1(h), autoscalerFromV1(old))
	},
	Columns: oldAutoscalerColumns(),
	Sub: []Subresource[*autoscalingv1.HorizontalPodAutoscaler]{{
		Name:  "status",
		Verbs: partVerbs,
		Prepare: func(_ context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) {
			inHubOf(old, func(h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Spec = old.Spec })(h)
		},
		Validate: func(ctx context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
			return validateAutoscalerStatus(ctx, autoscalerFromV1(h), autoscalerFromV1(old))
		},
	}},
}

type hubChange = func(h, old *autoscalingv2.HorizontalPodAutoscaler)

// inHub makes a change to the hub's form one to version 1.
func inHub(change hubChange) func(*autoscalingv1.HorizontalPodAutoscaler) {
	return inHubOf(nil, change)
}

func inHubOf(old *autoscalingv1.HorizontalPodAutoscaler, change hubChange) func(*autoscalingv1.HorizontalPodAutoscaler) {
	return func(h *autoscalingv1.HorizontalPodAutoscaler) {
		hub, kind := autoscalerFromV1(h), h.TypeMeta
		change(hub, autoscalerFromV1(old))
		*h = *autoscalerToV1(hub)
		h.TypeMeta = kind
	}
}

func oldAutoscalerColumns() []Column[*autoscalingv1.HorizontalPodAutoscaler] {
	var all []Column[*autoscalingv1.HorizontalPodAutoscaler]
	for _, c := range horizontalPodAutoscalers.Columns {
		all = append(all, Column[*autoscalingv1.HorizontalPodAutoscaler]{c.TableColumnDefinition,
			func(h *autoscalingv1.HorizontalPodAutoscaler) any { return c.Cell(autoscalerFromV1(h)) }})
	}
	return all
}

// isCPUTarget says that a metric is the one version 1 has a field for.
func isCPUTarget(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
		m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil
}

func cpuTarget(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent}}}
}

func autoscalerToV1(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv1.HorizontalPodAutoscaler {
	h = h.DeepCopy()
	out := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: h.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(h.Spec.ScaleTargetRef),
			MinReplicas:    h.Spec.MinReplicas, MaxReplicas: h.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: h.Status.ObservedGeneration, LastScaleTime: h.Status.LastScaleTime,
			CurrentReplicas: h.Status.CurrentReplicas, DesiredReplicas: h.Status.DesiredReplicas,
		},
	}
	out.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"))
	out.Annotations = withoutAutoscaler(h.Annotations)
	annotate := func(key string, value any) {
		data, err := json.Marshal(value)
		if err != nil {
			return // nothing in these types can fail
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[key] = string(data)
	}
	var others []autoscalingv1.MetricSpec
	for i := range h.Spec.Metrics {
		m := &h.Spec.Metrics[i]
		if !isCPUTarget(m) {
			others = append(others, metricToV1(m))
		} else if out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
		}
	}
	if len(others) > 0 {
		annotate(metricsAnnotation, others)
	}
	var current []autoscalingv1.MetricStatus
	for i := range h.Status.CurrentMetrics {
		m := &h.Status.CurrentMetrics[i]
		current = append(current, metricStatusToV1(m))
		if r := m.Resource; m.Type == autoscalingv2.ResourceMetricSourceType && r != nil && r.Name == corev1.ResourceCPU && r.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = r.Current.AverageUtilization
		}
	}
	if len(current) > 0 {
		annotate(currentAnnotation, current)
	}
	if b := h.Spec.Behavior; b != nil {
		annotate(behaviorAnnotation, shownBehavior{showScaling(b.ScaleUp), showScaling(b.ScaleDown)})
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range h.Status.Conditions {
		conditions = append(conditions, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	if len(conditions) > 0 {
		annotate(conditionsAnnotation, conditions)
	}
	return out
}

// autoscalerFromV1 is h in the hub's form, nil for nil.
func autoscalerFromV1(h *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	if h == nil {
		return nil
	}
	h = h.DeepCopy()
	out := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: h.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(h.Spec.ScaleTargetRef),
			MinReplicas:    h.Spec.MinReplicas, MaxReplicas: h.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: h.Status.ObservedGeneration, LastScaleTime: h.Status.LastScaleTime,
			CurrentReplicas: h.Status.CurrentReplicas, DesiredReplicas: h.Status.DesiredReplicas,
		},
	}
	out.SetGroupVersionKind(autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"))
	// read is false for what is absent or unreadable: it counts as not there.
	read := func(key string, into any) bool {
		text, ok := h.Annotations[key]
		return ok && json.Unmarshal([]byte(text), into) == nil
	}
	var others []autoscalingv1.MetricSpec
	if read(metricsAnnotation, &others) {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
		}
	}
	if p := h.Spec.TargetCPUUtilizationPercentage; p != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, cpuTarget(*p))
	}
	if len(out.Spec.Metrics) == 0 {
		out.Spec.Metrics = []autoscalingv2.MetricSpec{cpuTarget(80)}
	}
	var behavior shownBehavior
	if read(behaviorAnnotation, &behavior) && behavior != (shownBehavior{}) {
		out.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: behavior.ScaleUp.rules(), ScaleDown: behavior.ScaleDown.rules()}
	}
	var current []autoscalingv1.MetricStatus
	if read(currentAnnotation, &current) {
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, metricStatusFromV1(&current[i]))
		}
	} else if p := h.Status.CurrentCPUUtilizationPercentage; p != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
			Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: p}}}}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if read(conditionsAnnotation, &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
				Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
				LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
		}
	}
	out.Annotations = withoutAutoscaler(h.Annotations)
	return out
}

// withoutAutoscaler is annotations without those that stand for fields.
func withoutAutoscaler(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	for _, key := range []string{metricsAnnotation, behaviorAnnotation, currentAnnotation, conditionsAnnotation,
		"autoscaling.alpha.kubernetes.io/scale-down-tolerance", "autoscaling.alpha.kubernetes.io/scale-up-tolerance"} {
		delete(out, key)
	}
	return out
}
