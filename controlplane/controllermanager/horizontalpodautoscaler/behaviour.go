package horizontalpodautoscaler

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// A step is from what number of replicas to what number the metrics ask to go,
// and between which bounds.
type step struct {
	from, to, least, most int32
}

// Scaling up without rules doubles the replicas, or makes them this many.
const (
	scaleUpFactor  = 2
	scaleUpMinimum = 4
)

const (
	highestApplied = "recent recommendations were higher than current one, applying the highest recent recommendation"
	lowestApplied  = "recent recommendations were lower than current one, applying the lowest recent recommendation"
	tooFast        = "the desired replica count is increasing faster than the maximum scale rate"
	tooFastDown    = "the desired replica count is decreasing faster than the maximum scale rate"
	tooMany        = "the desired replica count is more than the maximum replica count"
	tooFew         = "the desired replica count is less than the minimum replica count"
	inRange        = "the desired count is within the acceptable range"
)

// behaviour is how far the step may go now, and remembers what was asked for.
// window is the stabilization window of scaling down that has none of its own.
func behaviour(rules *autoscalingv2.HorizontalPodAutoscalerBehavior, h *history, s step, window time.Duration, now time.Time) (desired int32, able, limited condition) {
	asked := s.to
	var reason, message string
	if rules == nil {
		s.to = highest(h.recommendations, s.to, now, window)
		reason, message = "ScaleDownStabilized", highestApplied
		h.recommend(asked, now, window)
	} else {
		up, down := windows(rules, window)
		s.to, reason, message = stabilize(h.recommendations, s, up, down, now)
		h.recommend(asked, now, max(up, down))
	}
	able = condition{autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale", "recommended size matches current size"}
	if s.to != asked {
		able.reason, able.message = reason, message
	}
	if rules == nil {
		desired, reason, message = limit(s)
	} else {
		desired, reason, message = limitRate(rules, h, s, now)
	}
	limited = condition{autoscalingv2.ScalingLimited, corev1.ConditionFalse, reason, message}
	if desired != s.to {
		limited.status = corev1.ConditionTrue
	}
	return desired, able, limited
}

// windows are how long recommendations hold back scaling up and down.
func windows(rules *autoscalingv2.HorizontalPodAutoscalerBehavior, window time.Duration) (up, down time.Duration) {
	of := func(r *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
		if r == nil || r.StabilizationWindowSeconds == nil {
			return otherwise
		}
		return time.Duration(*r.StabilizationWindowSeconds) * time.Second
	}
	return of(rules.ScaleUp, 0), of(rules.ScaleDown, window)
}

// highest of what was recommended within the window.
func highest(recommendations []change, to int32, now time.Time, window time.Duration) int32 {
	for _, r := range recommendations {
		if !r.at.Before(now.Add(-window)) {
			to = max(to, r.replicas)
		}
	}
	return to
}

// stabilize changes no more than all recent recommendations agree on.
func stabilize(recommendations []change, s step, up, down time.Duration, now time.Time) (to int32, reason, message string) {
	low, high := s.to, s.to
	for _, r := range recommendations {
		if r.at.After(now.Add(-up)) {
			low = min(low, r.replicas)
		}
		if r.at.After(now.Add(-down)) {
			high = max(high, r.replicas)
		}
	}
	to = min(max(s.from, low), high)
	if s.to >= s.from {
		return to, "ScaleUpStabilized", lowestApplied
	}
	return to, "ScaleDownStabilized", highestApplied
}

// limit keeps the step within its bounds and from growing too fast.
func limit(s step) (desired int32, reason, message string) {
	most, reason, message := s.most, "TooManyReplicas", tooMany
	if fast := max(scaleUpFactor*int64(s.from), scaleUpMinimum); int64(most) > fast {
		most, reason, message = int32(fast), "ScaleUpLimit", tooFast
	}
	switch {
	case s.to < s.least:
		return s.least, "TooFewReplicas", tooFew
	case s.to > most:
		return most, reason, message
	}
	return s.to, "DesiredWithinRange", inRange
}

// limitRate keeps the step within its bounds and its direction's policies.
func limitRate(rules *autoscalingv2.HorizontalPodAutoscalerBehavior, h *history, s step, now time.Time) (desired int32, reason, message string) {
	switch {
	case s.to > s.from:
		most, reason, message := s.most, "TooManyReplicas", tooMany
		if fast := max(s.from, rate(rules.ScaleUp, h, s.from, true, now)); most > fast {
			most, reason, message = fast, "ScaleUpLimit", tooFast
		}
		if s.to > most {
			return most, reason, message
		}
	case s.to < s.from:
		least, reason, message := s.least, "TooFewReplicas", tooFew
		if fast := min(s.from, rate(rules.ScaleDown, h, s.from, false, now)); least < fast {
			least, reason, message = fast, "ScaleDownLimit", tooFastDown
		}
		if s.to < least {
			return least, reason, message
		}
	}
	return s.to, "DesiredWithinRange", inRange
}

// rate is how far the policies let replicas go from a number of them: each
// counts from what there was when its period began.
func rate(rules *autoscalingv2.HPAScalingRules, h *history, from int32, up bool, now time.Time) int32 {
	choice := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		choice = *rules.SelectPolicy
	}
	if choice == autoscalingv2.DisabledPolicySelect {
		return from
	}
	// The most change is the highest number upwards and the lowest downwards.
	pick, result := func(a, b int32) int32 { return max(a, b) }, int32(math.MinInt32)
	if up == (choice == autoscalingv2.MinChangePolicySelect) {
		pick, result = func(a, b int32) int32 { return min(a, b) }, math.MaxInt32
	}
	for _, p := range rules.Policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		start := float64(int64(from) - within(h.added, now, period) + within(h.removed, now, period))
		amount, to := float64(p.Value), 0.0
		switch {
		case p.Type == autoscalingv2.PodsScalingPolicy && up:
			to = start + amount
		case p.Type == autoscalingv2.PodsScalingPolicy:
			to = start - amount
		case up: // rounded up, or few replicas would never become more
			to = math.Ceil(start * (1 + amount/100))
		default:
			to = math.Trunc(start * (1 - amount/100))
		}
		result = pick(result, saturated(to))
	}
	return result
}

// longest is the longest period of the rules' policies.
func longest(rules *autoscalingv2.HPAScalingRules) (period time.Duration) {
	if rules != nil {
		for _, p := range rules.Policies {
			period = max(period, time.Duration(p.PeriodSeconds)*time.Second)
		}
	}
	return period
}
