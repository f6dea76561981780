package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A proposal is how many replicas one metric asks for, or why it asks for none.
type proposal struct {
	replicas int32
	// metric is what a change is explained by.
	metric string
	status autoscalingv2.MetricStatus
	// reason is that of the event and the condition about cause, "" if there is
	// a number; err says which metric it was.
	reason     string
	cause, err error
}

func failed(reason string, cause, err error) proposal {
	return proposal{reason: reason, cause: cause, err: err}
}

// choose is the proposal for the most replicas. Without one, or when some
// failed and the others would remove replicas, ok is false and failure the first
// that failed; err says how many did.
func choose(all []proposal, current int32) (best, failure proposal, ok bool, err error) {
	if len(all) == 0 {
		err := errors.New("no metrics to calculate a replica count from")
		return best, failed("InvalidMetricSourceType", err, err), false, err
	}
	invalid := 0
	for _, p := range all {
		switch {
		case p.err != nil:
			if invalid++; invalid == 1 {
				failure = p
			}
		case best.metric == "" || p.replicas > best.replicas:
			best = p
		}
	}
	if invalid > 0 {
		err = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", invalid, len(all), failure.err)
	}
	ok = invalid < len(all) && (invalid == 0 || best.replicas >= current)
	return best, failure, ok, err
}

// A measuring is one look at the metrics of an autoscaler.
type measuring struct {
	*metricsAPI
	calculation
	namespace string
	selector  labels.Selector
}

func (m *measuring) propose(ctx context.Context, spec *autoscalingv2.MetricSpec) proposal {
	switch spec.Type {
	case autoscalingv2.ObjectMetricSourceType:
		return m.ofObject(ctx, spec.Object)
	case autoscalingv2.PodsMetricSourceType:
		return m.ofPods(ctx, spec.Pods)
	case autoscalingv2.ResourceMetricSourceType:
		return m.ofResource(ctx, spec.Resource)
	case autoscalingv2.ContainerResourceMetricSourceType:
		return m.ofContainer(ctx, spec.ContainerResource)
	case autoscalingv2.ExternalMetricSourceType:
		return m.ofExternal(ctx, spec.External)
	}
	err := fmt.Errorf("unknown metric source type %q", string(spec.Type))
	return failed("InvalidMetricSourceType", err, err)
}

func (m *measuring) ofObject(ctx context.Context, s *autoscalingv2.ObjectMetricSource) proposal {
	const reason, message = "FailedGetObjectMetric", "failed to get object metric value: %w"
	selector, err := metav1.LabelSelectorAsSelector(s.Metric.Selector)
	if err != nil {
		return failed(reason, err, fmt.Errorf(message, err))
	}
	byValue := s.Target.Type == autoscalingv2.ValueMetricType && s.Target.Value != nil
	if !byValue && (s.Target.Type != autoscalingv2.AverageValueMetricType || s.Target.AverageValue == nil) {
		err := errors.New("invalid object metric source: neither a value target nor an average value target was set")
		return failed(reason, err, fmt.Errorf(message, err))
	}
	p := proposal{status: autoscalingv2.MetricStatus{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricStatus{
		DescribedObject: s.DescribedObject, Metric: s.Metric}}}
	value, err := m.object(ctx, m.namespace, s.Metric.Name, &s.DescribedObject, selector)
	if err != nil {
		err = fmt.Errorf("unable to get metric %s: %v on %s %s/%w", s.Metric.Name, s.DescribedObject.Kind, m.namespace, s.DescribedObject.Name, err)
	}
	current := &p.status.Object.Current
	if byValue {
		if err == nil {
			p.replicas, err = m.total(value, milli(s.Target.Value))
		}
		p.metric = fmt.Sprintf("%s metric %s", s.DescribedObject.Kind, s.Metric.Name)
		current.Value = thousandths(value)
		if err != nil {
			return failed(reason, err, fmt.Errorf(message, err))
		}
		return p
	}
	if err != nil {
		return failed(reason, err, fmt.Errorf(message, fmt.Errorf("failed to get %s object metric: %w", s.Metric.Name, err)))
	}
	p.replicas, value = m.perPod(value, milli(s.Target.AverageValue))
	p.metric = externalName(&s.Metric) // upstream's word for it
	current.AverageValue = thousandths(value)
	return p
}

func (m *measuring) ofPods(ctx context.Context, s *autoscalingv2.PodsMetricSource) proposal {
	const reason, message = "FailedGetPodsMetric", "failed to get pods metric value: %w"
	selector, err := metav1.LabelSelectorAsSelector(s.Metric.Selector)
	if err != nil {
		return failed(reason, err, fmt.Errorf(message, err))
	}
	all, err := m.pods(ctx, m.namespace, s.Metric.Name, m.selector, selector)
	if err != nil {
		err = fmt.Errorf("unable to get metric %s: %w", s.Metric.Name, err)
		return failed(reason, err, fmt.Errorf(message, err))
	}
	n, average, err := m.average(all, "", milli(s.Target.AverageValue))
	if err != nil {
		return failed(reason, err, fmt.Errorf(message, err))
	}
	return proposal{replicas: n, metric: "pods metric " + s.Metric.Name, status: autoscalingv2.MetricStatus{
		Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricStatus{
			Metric: s.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: thousandths(average)}}}}
}

func (m *measuring) ofResource(ctx context.Context, s *autoscalingv2.ResourceMetricSource) proposal {
	p, err := m.usage(ctx, s.Name, "", &s.Target)
	if err != nil {
		return failed("FailedGetResourceMetric", err, fmt.Errorf("failed to get %s resource metric value: %w", s.Name, err))
	}
	p.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricStatus{Name: s.Name, Current: p.status.Resource.Current}}
	return p
}

func (m *measuring) ofContainer(ctx context.Context, s *autoscalingv2.ContainerResourceMetricSource) proposal {
	p, err := m.usage(ctx, s.Name, s.Container, &s.Target)
	if err != nil {
		return failed("FailedGetContainerResourceMetric", err, fmt.Errorf("failed to get %s container metric value: %w", s.Container, err))
	}
	p.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: s.Name, Container: s.Container, Current: p.status.Resource.Current}}
	return p
}

// usage proposes by what pods, or one container of each, use of a resource. The
// status is in its Resource.
func (m *measuring) usage(ctx context.Context, name corev1.ResourceName, container string, target *autoscalingv2.MetricTarget) (p proposal, err error) {
	p.status.Resource = &autoscalingv2.ResourceMetricStatus{}
	current := &p.status.Resource.Current
	if target.AverageValue == nil && target.AverageUtilization == nil {
		return p, errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	}
	all, err := m.resource(ctx, m.namespace, m.selector, name, container)
	if err != nil {
		err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
	}
	var average int64
	if target.AverageValue != nil {
		if err == nil {
			p.replicas, average, err = m.average(all, name, milli(target.AverageValue))
		}
		if err != nil {
			return p, fmt.Errorf("failed to get %s usage: %w", name, err)
		}
		p.metric = fmt.Sprintf("%s resource", name)
		current.AverageValue = amount(name, average)
		return p, nil
	}
	var percent int32
	if err == nil {
		p.replicas, percent, average, err = m.utilization(all, name, container, *target.AverageUtilization)
	}
	if err != nil {
		return p, fmt.Errorf("failed to get %s utilization: %w", name, err)
	}
	p.metric = fmt.Sprintf("%s resource utilization (percentage of request)", name)
	if container != "" {
		p.metric = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
	}
	current.AverageUtilization, current.AverageValue = &percent, amount(name, average)
	return p, nil
}

func (m *measuring) ofExternal(ctx context.Context, s *autoscalingv2.ExternalMetricSource) proposal {
	const reason = "FailedGetExternalMetric"
	fail := func(format string, err error) proposal {
		return failed(reason, err, fmt.Errorf("failed to get %s external metric value: %w", s.Metric.Name, fmt.Errorf(format, s.Metric.Name, err)))
	}
	if s.Target.AverageValue == nil && s.Target.Value == nil {
		err := errors.New("invalid external metric source: neither a value target nor an average value target was set")
		return failed(reason, err, fmt.Errorf("failed to get %s external metric value: %w", s.Metric.Name, err))
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Metric.Selector)
	var value int64
	if err == nil {
		if value, err = m.external(ctx, m.namespace, s.Metric.Name, selector); err != nil {
			err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", m.namespace, s.Metric.Name, s.Metric.Selector, err)
		}
	}
	p := proposal{metric: externalName(&s.Metric)}
	current := autoscalingv2.MetricValueStatus{}
	if s.Target.AverageValue != nil {
		if err != nil {
			return fail("failed to get %s external metric: %w", err)
		}
		p.replicas, value = m.perPod(value, milli(s.Target.AverageValue))
		current.AverageValue = thousandths(value)
	} else {
		if err == nil {
			p.replicas, err = m.total(value, milli(s.Target.Value))
		}
		if err != nil {
			return fail("failed to get external metric %s: %w", err)
		}
		current.Value = thousandths(value)
	}
	p.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricStatus{Metric: s.Metric, Current: current}}
	return p
}

func externalName(m *autoscalingv2.MetricIdentifier) string {
	return fmt.Sprintf("external metric %s(%+v)", m.Name, m.Selector)
}

func thousandths(n int64) *resource.Quantity { return resource.NewMilliQuantity(n, resource.DecimalSI) }

// amount is n thousandths of a resource, memory in powers of two.
func amount(name corev1.ResourceName, n int64) *resource.Quantity {
	if name == corev1.ResourceMemory {
		return resource.NewMilliQuantity(n, resource.BinarySI)
	}
	return thousandths(n)
}
