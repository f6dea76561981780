package registry

import (
	"context"
	"fmt"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/internal/features"
)

func validateAutoscaler(ctx context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &h.Spec
	if low := s.MinReplicas; low != nil {
		least := int32(1)
		if features.On(ctx, features.ScaleToZero) || old != nil && deref(old.Spec.MinReplicas, 1) == 0 {
			least = 0
		}
		if *low < least {
			f.invalid(at.Child("minReplicas"), *low, fmt.Sprintf("must be greater than or equal to %d", least))
		}
	}
	if s.MaxReplicas == 0 {
		f.required(at.Child("maxReplicas"), "must be set and greater than 0")
	} else if s.MaxReplicas < 0 {
		f.invalid(at.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to 1")
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		f.invalid(at.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to `minReplicas`")
	}
	f.add(validateScaleTarget(&s.ScaleTargetRef, old, at.Child("scaleTargetRef")))
	scalesToZero := false
	for i := range s.Metrics {
		m := &s.Metrics[i]
		f.add(validateMetric(m, at.Child("metrics").Index(i)))
		scalesToZero = scalesToZero || m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	}
	if deref(s.MinReplicas, 1) == 0 && !scalesToZero {
		f.forbidden(at.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas")
	}
	if b := s.Behavior; b != nil {
		f.add(validateScalingRules(b.ScaleUp, at.Child("behavior", "scaleUp")))
		f.add(validateScalingRules(b.ScaleDown, at.Child("behavior", "scaleDown")))
	}
	return f.list
}

// validateScaleTarget wants to know the group of what is scaled, but leaves
// alone what is stored.
func validateScaleTarget(r *autoscalingv2.CrossVersionObjectReference, old *autoscalingv2.HorizontalPodAutoscaler, at *field.Path) field.ErrorList {
	if old != nil && old.Spec.ScaleTargetRef.APIVersion == r.APIVersion && old.Spec.ScaleTargetRef.Kind == r.Kind {
		return validateObjectReference(nil, r.Kind, r.Name, at)
	}
	errs := validateTargetReference(r, at)
	if gv, err := schema.ParseGroupVersion(r.APIVersion); err == nil && gv.Group == "" && r.Kind != "ReplicationController" {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), r.APIVersion, "apiVersion must specify API group"))
	}
	return errs
}

func validateTargetReference(r *autoscalingv2.CrossVersionObjectReference, at *field.Path) field.ErrorList {
	errs := validateObjectReference(nil, r.Kind, r.Name, at)
	if _, err := schema.ParseGroupVersion(r.APIVersion); err != nil {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), r.APIVersion, err.Error()))
	}
	return errs
}

func validateScalingRules(r *autoscalingv2.HPAScalingRules, at *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var f faults
	if w := r.StabilizationWindowSeconds; w != nil && *w < 0 {
		f.invalid(at.Child("stabilizationWindowSeconds"), w, "must be greater than or equal to zero")
	} else if w != nil && *w > 3600 {
		f.invalid(at.Child("stabilizationWindowSeconds"), w, "must be less than or equal to 3600")
	}
	if p := r.SelectPolicy; p != nil {
		f.add(oneOf(*p, at.Child("selectPolicy"), autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect))
	}
	if len(r.Policies) == 0 {
		f.required(at.Child("policies"), "must specify at least one Policy")
	}
	for i, p := range r.Policies {
		q := at.Child("policies").Index(i)
		f.add(oneOf(p.Type, q.Child("type"), autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy))
		f.add(positiveValue(p.Value, q.Child("value")))
		f.add(positiveValue(p.PeriodSeconds, q.Child("periodSeconds")))
		if p.PeriodSeconds > 1800 {
			f.invalid(q.Child("periodSeconds"), p.PeriodSeconds, "must be less than or equal to 1800")
		}
	}
	if r.Tolerance != nil && r.Tolerance.Sign() < 0 {
		f.invalid(at.Child("tolerance"), r.Tolerance.String(), "must be greater than or equal to 0")
	}
	return f.list
}

func positiveValue(v int32, at *field.Path) field.ErrorList {
	if v > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, v, "must be greater than zero")}
}

func validateMetric(m *autoscalingv2.MetricSpec, at *field.Path) field.ErrorList {
	var f faults
	sources := []struct {
		typ   autoscalingv2.MetricSourceType
		name  string
		set   bool
		check func(at *field.Path)
	}{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil, func(at *field.Path) {
			f.add(validateTargetReference(&m.Object.DescribedObject, at.Child("describedObject")))
			f.add(metricName(m.Object.Metric.Name, at.Child("metric", "name")))
			f.add(validateTarget(&m.Object.Target, at.Child("target")))
			if m.Object.Target.Value == nil && m.Object.Target.AverageValue == nil {
				f.required(at.Child("target", "averageValue"), "must set either a target value or averageValue")
			}
		}},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil, func(at *field.Path) {
			f.add(metricName(m.External.Metric.Name, at.Child("metric", "name")))
			t := &m.External.Target
			f.add(validateTarget(t, at.Child("target")))
			if t.Value == nil && t.AverageValue == nil {
				f.required(at.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target")
			}
			if t.Value != nil && t.AverageValue != nil {
				f.forbidden(at.Child("target", "value"), "may not set both a target value for metric and a per-pod target")
			}
		}},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil, func(at *field.Path) {
			f.add(metricName(m.Pods.Metric.Name, at.Child("metric", "name")))
			f.add(validateTarget(&m.Pods.Target, at.Child("target")))
			if m.Pods.Target.AverageValue == nil {
				f.required(at.Child("target", "averageValue"), "must specify a positive target averageValue")
			}
		}},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil, func(at *field.Path) {
			if m.Resource.Name == "" {
				f.required(at.Child("name"), "must specify a resource name")
			}
			f.add(validateUtilization(&m.Resource.Target, at.Child("target")))
		}},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil, func(at *field.Path) {
			if m.ContainerResource.Name == "" {
				f.required(at.Child("name"), "must specify a resource name")
			} else {
				f.add(containerResourceName(m.ContainerResource.Name, at.Child("name")))
			}
			if m.ContainerResource.Container == "" {
				f.required(at.Child("container"), "must specify a container")
			} else {
				f.add(dnsLabel(m.ContainerResource.Container, at.Child("container")))
			}
			f.add(validateUtilization(&m.ContainerResource.Target, at.Child("target")))
		}},
	}
	var types []autoscalingv2.MetricSourceType
	n := 0
	for _, s := range sources {
		types = append(types, s.typ)
		if s.set {
			if n++; n == 1 {
				s.check(at.Child(s.name))
			}
		}
	}
	if m.Type == "" {
		f.required(at.Child("type"), "must specify a metric source type")
	}
	if !slices.Contains(types, m.Type) { // upstream says it twice
		f.add(oneOf(m.Type, at.Child("type"), types...))
		f.add(oneOf(m.Type, at.Child("type"), types...))
	}
	for _, s := range sources {
		switch {
		case s.typ == m.Type && !s.set:
			f.required(at.Child(s.name), "must populate information for the given metric source")
		case s.typ != m.Type && s.set && n != 1:
			f.forbidden(at.Child(s.name), "must populate the given metric source only")
		}
	}
	return f.list
}

func metricName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "must specify a metric name")}
	}
	return invalid(NameIsPathSegment(name, false), name, at)
}

func validateTarget(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	var f faults
	if t.Type == "" {
		f.required(at.Child("type"), "must specify a metric target type")
	}
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		f.invalid(at.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue")
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		f.invalid(at.Child("value"), t.Value, "must be positive")
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		f.invalid(at.Child("averageValue"), t.AverageValue, "must be positive")
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		f.invalid(at.Child("averageUtilization"), t.AverageUtilization, "must be greater than 0")
	}
	return f.list
}

func validateUtilization(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	var f faults
	f.add(validateTarget(t, at))
	if t.AverageUtilization == nil && t.AverageValue == nil {
		f.required(at.Child("averageUtilization"), "must set either a target raw value or a target utilization")
	}
	if t.AverageUtilization != nil && t.AverageValue != nil {
		f.forbidden(at.Child("averageValue"), "may not set both a target raw value and a target utilization")
	}
	return f.list
}

func validateAutoscalerStatus(_ context.Context, h, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	return nonnegativeCounts(field.NewPath("status"), count{"currentReplicas", int64(h.Status.CurrentReplicas)},
		count{"desiredReplicas", int64(h.Status.DesiredReplicas)})
}
