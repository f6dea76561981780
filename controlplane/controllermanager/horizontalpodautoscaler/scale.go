package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// set sets conditions of an autoscaler.
func set(hpa *autoscalingv2.HorizontalPodAutoscaler, all ...condition) {
	hpa.Status.Conditions = conditions(hpa.Status.Conditions, metav1.Now(), all...)
}

// scale brings the target to the size that bounds, metrics and rules give, and
// hpa's status to what was seen.
func (r *reconciler) scale(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, h *history) error {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	t, err := r.targets.scale(ctx, hpa.Namespace, &hpa.Spec.ScaleTargetRef)
	if err != nil {
		r.events.Event(hpa, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		set(hpa, condition{autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
			fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err)})
		return fmt.Errorf("read the target's scale: %w", err)
	}
	set(hpa, condition{autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale"})
	current := t.Spec.Replicas
	if len(h.recommendations) == 0 {
		h.recommend(current, time.Now(), r.DownscaleStabilization)
	}
	hpa.Status.CurrentReplicas = current
	hpa.Status.CurrentMetrics, hpa.Status.ObservedGeneration = nil, nil

	zeroed := r.ScaleToZero && scaledToZero(hpa.Status.Conditions)
	d := bound(&hpa.Spec, current, zeroed)
	if d.disabled {
		set(hpa, condition{autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero"})
		if !r.ScaleToZero {
			hpa.Status.Conditions = withoutScaledToZero(hpa.Status.Conditions)
		}
	}
	var partly error
	if d.measure {
		best, ok, err := r.measure(ctx, hpa, t.Scale)
		if !ok {
			r.events.Event(hpa, corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
			return fmt.Errorf("compute replicas: %w", err)
		}
		partly = err
		d = r.follow(hpa, h, current, best, zeroed)
	}
	if d.replicas != current && !d.disabled {
		if err := r.resize(ctx, hpa, h, t, d); err != nil {
			return err
		}
	}
	hpa.Status.DesiredReplicas = d.replicas
	return partly
}

// follow is what the rules make of what the metrics ask for.
func (r *reconciler) follow(hpa *autoscalingv2.HorizontalPodAutoscaler, h *history, current int32, best proposal, zeroed bool) (d decision) {
	switch {
	case best.replicas > current:
		d.reason = best.metric + " above target"
	case best.replicas < current:
		d.reason = "All metrics below target"
	}
	low := least(&hpa.Spec)
	var able, limited condition
	d.replicas, able, limited = behaviour(hpa.Spec.Behavior, h, step{from: current, to: best.replicas, least: low, most: hpa.Spec.MaxReplicas},
		r.DownscaleStabilization, time.Now())
	set(hpa, able, limited)
	if current == 0 && zeroed && d.replicas < low {
		d.replicas = low
		if d.reason == "" {
			d.reason = belowLeast
		}
	}
	return d
}

// resize writes the target's scale.
func (r *reconciler) resize(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, h *history, t *target, d decision) error {
	current, now := hpa.Status.CurrentReplicas, time.Now()
	if err := r.targets.resize(ctx, t, d.replicas); err != nil {
		r.events.Eventf(hpa, corev1.EventTypeWarning, "FailedRescale", "New size: %d; reason: %s; error: %v", d.replicas, d.reason, err.Error())
		set(hpa, condition{autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err)})
		return fmt.Errorf("write the target's scale: %w", err)
	}
	set(hpa, condition{autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", d.replicas)})
	r.events.Eventf(hpa, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", d.replicas, d.reason)
	hpa.Status.LastScaleTime = &metav1.Time{Time: now}
	if b := hpa.Spec.Behavior; b != nil {
		h.rescaled(current, d.replicas, now, longest(b.ScaleUp), longest(b.ScaleDown))
	}
	switch {
	case !r.ScaleToZero:
		hpa.Status.Conditions = withoutScaledToZero(hpa.Status.Conditions)
	case current > 0 && d.replicas == 0 && least(&hpa.Spec) == 0 && awakens(&hpa.Spec):
		set(hpa, condition{autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero"})
	default:
		set(hpa, condition{autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero"})
	}
	return nil
}

// measure asks for every metric and puts what it hears into hpa's status. ok is
// false if nothing may be done; there may be an error beside a proposal.
func (r *reconciler) measure(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, scale *autoscalingv1.Scale) (best proposal, ok bool, err error) {
	selector, pods, err := r.selected(hpa, scale.Status.Selector)
	if err != nil {
		return best, false, err
	}
	m := &measuring{metricsAPI: r.metrics, namespace: hpa.Namespace, selector: selector, calculation: calculation{
		selected: pods, spec: scale.Spec.Replicas, status: scale.Status.Replicas, tolerances: r.tolerances(hpa.Spec.Behavior),
		initialization: r.CPUInitializationPeriod, delay: r.InitialReadinessDelay, now: time.Now()}}
	proposals := make([]proposal, len(hpa.Spec.Metrics))
	for i := range hpa.Spec.Metrics {
		began := time.Now()
		p := m.propose(ctx, &hpa.Spec.Metrics[i])
		observeMetric(hpa.Spec.Metrics[i].Type, scale.Spec.Replicas, p, began)
		if p.err != nil {
			r.events.Event(hpa, corev1.EventTypeWarning, p.reason, p.cause.Error())
		}
		proposals[i] = p
		hpa.Status.CurrentMetrics = append(hpa.Status.CurrentMetrics, p.status)
	}
	best, failure, ok, err := choose(proposals, m.spec)
	if !ok {
		set(hpa, condition{autoscalingv2.ScalingActive, corev1.ConditionFalse, failure.reason,
			fmt.Sprintf("the HPA was unable to compute the replica count: %v", failure.cause)})
		return best, false, err
	}
	set(hpa, condition{autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from " + best.metric})
	return best, true, err
}

// tolerances are the rules' own, or else the controller's.
func (r *reconciler) tolerances(b *autoscalingv2.HorizontalPodAutoscalerBehavior) tolerances {
	of := func(rules *autoscalingv2.HPAScalingRules) float64 {
		if rules == nil || rules.Tolerance == nil {
			return r.Tolerance
		}
		return rules.Tolerance.AsApproximateFloat64()
	}
	if b == nil {
		return tolerances{r.Tolerance, r.Tolerance}
	}
	return tolerances{down: of(b.ScaleDown), up: of(b.ScaleUp)}
}

// selected are the target's pods, which no other autoscaler may count.
func (r *reconciler) selected(hpa *autoscalingv2.HorizontalPodAutoscaler, selector string) (labels.Selector, []*corev1.Pod, error) {
	refuse := func(event, reason, message, shown string) (labels.Selector, []*corev1.Pod, error) {
		r.events.Event(hpa, corev1.EventTypeWarning, event, message)
		set(hpa, condition{autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, shown})
		return nil, nil, errors.New(message)
	}
	const invalid = "InvalidSelector"
	if selector == "" {
		return refuse("SelectorRequired", invalid, "selector is required", "the HPA target's scale is missing a selector")
	}
	parsed, err := labels.Parse(selector)
	if err != nil {
		message := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		return refuse(invalid, invalid, message, message)
	}
	r.selectors.put(cache.MetaObjectToName(hpa), parsed)
	var pods []*corev1.Pod
	if err := cache.ListAllByNamespace(r.pods, hpa.Namespace, parsed, func(o any) { pods = append(pods, o.(*corev1.Pod)) }); err != nil {
		return nil, nil, err
	}
	if several := r.selectors.selecting(hpa.Namespace, pods); len(several) > 1 {
		message := fmt.Sprintf("pods by selector %v are controlled by multiple HPAs: %v", selector, several)
		return refuse("AmbiguousSelector", "AmbiguousSelector", message, message)
	}
	return parsed, pods, nil
}
