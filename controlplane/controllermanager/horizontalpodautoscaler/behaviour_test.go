package horizontalpodautoscaler

import (
	"fmt"
	"math"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ago are changes that many minutes ago.
func ago(replicasAndMinutes ...int) (all []change) {
	for i := 0; i < len(replicasAndMinutes); i += 2 {
		all = append(all, change{int32(replicasAndMinutes[i]), now.Add(-time.Duration(replicasAndMinutes[i+1]) * time.Minute)})
	}
	return all
}

// spread are changes spread over the last period.
func spread(period time.Duration, replicas ...int32) (all []change) {
	for i, n := range replicas {
		all = append(all, change{n, now.Add(-period + period/time.Duration(len(replicas))*time.Duration(i) + time.Second)})
	}
	return all
}

// rules have a policy of pods and one of percent, those that are above nought.
func rules(pods, podSeconds, percent, percentSeconds int32, window *int32) *autoscalingv2.HPAScalingRules {
	r := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: window, SelectPolicy: new(autoscalingv2.MaxChangePolicySelect)}
	if pods > 0 {
		r.Policies = append(r.Policies, autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: pods, PeriodSeconds: podSeconds})
	}
	if percent > 0 {
		r.Policies = append(r.Policies, autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: percent, PeriodSeconds: percentSeconds})
	}
	return r
}

func choosing(p autoscalingv2.ScalingPolicySelect, r *autoscalingv2.HPAScalingRules) *autoscalingv2.HPAScalingRules {
	r.SelectPolicy = &p
	return r
}

// What an autoscaler without rules does.
func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		step
		recommendations []change
		want            string
	}{
		{step{5, 7, 3, 8}, nil, "7 ReadyForNewScale False DesiredWithinRange"},
		{step{3, 1, 2, 8}, nil, "2 ReadyForNewScale True TooFewReplicas"},
		{step{1, 0, 0, 10}, nil, "0 ReadyForNewScale False DesiredWithinRange"},
		{step{20, 1000, 1, 10}, nil, "10 ReadyForNewScale True TooManyReplicas"},
		{step{3, 1000, 1, 2000}, nil, "6 ReadyForNewScale True ScaleUpLimit"},
		{step{1, 1000, 1, 2000}, nil, "4 ReadyForNewScale True ScaleUpLimit"},
		{step{math.MaxInt32, math.MaxInt32, 1, math.MaxInt32}, nil, "2147483647 ReadyForNewScale False DesiredWithinRange"},
		{step{6, 3, 1, 9}, ago(4, 2, 5, 1), "5 ScaleDownStabilized False DesiredWithinRange"},
		{step{6, 3, 1, 9}, ago(1, 2, 2, 1), "3 ReadyForNewScale False DesiredWithinRange"},
		{step{6, 3, 1, 9}, ago(10, 10, 9, 9), "3 ReadyForNewScale False DesiredWithinRange"},
		{step{6, 3, 1, 9}, ago(10, 10, 9, 9, 5, 2, 4, 1), "5 ScaleDownStabilized False DesiredWithinRange"},
	} {
		h := &history{recommendations: tt.recommendations}
		n, able, limited := behaviour(nil, h, tt.step, 5*time.Minute, now)
		if got := fmt.Sprint(n, " ", able.reason, " ", limited.status, " ", limited.reason); got != tt.want {
			t.Errorf("%+v after %v: %s, want %s", tt.step, tt.recommendations, got, tt.want)
		}
	}
}

func TestPolicies(t *testing.T) {
	min := autoscalingv2.MinChangePolicySelect
	def := func() *autoscalingv2.HPAScalingRules { return rules(4, 15, 100, 15, new(int32)) }
	defDown := func() *autoscalingv2.HPAScalingRules { return rules(0, 0, 100, 15, new(int32)) }
	two := 2 * time.Minute
	for _, tt := range []struct {
		name           string
		added, removed []change
		step
		up, down *autoscalingv2.HPAScalingRules
		want     string
	}{
		{"as they are by default", nil, nil, step{10, 50, 1, 1000}, def(), defDown(), "20 True ScaleUpLimit"},
		{"by default, few", nil, nil, step{1, 50, 1, 1000}, def(), defDown(), "5 True ScaleUpLimit"},
		{"by default, down", nil, nil, step{10, 5, 1, 1000}, def(), defDown(), "5 False DesiredWithinRange"},
		{"more by pods", nil, nil, step{10, 500, 1, 1000}, rules(100, 60, 100, 60, nil), defDown(), "110 True ScaleUpLimit"},
		{"more by percent", nil, nil, step{10, 500, 1, 1000}, rules(2, 60, 100, 60, nil), defDown(), "20 True ScaleUpLimit"},
		{"the least change", nil, nil, step{10, 500, 1, 1000}, choosing(min, rules(2, 60, 100, 60, nil)), defDown(), "12 True ScaleUpLimit"},
		{"no change", nil, nil, step{10, 500, 1, 1000}, choosing(autoscalingv2.DisabledPolicySelect, def()), defDown(), "10 True ScaleUpLimit"},
		{"many pods", nil, nil, step{10, 50, 1, 1000}, rules(100, 60, 0, 0, nil), defDown(), "50 False DesiredWithinRange"},
		{"30 pods", nil, nil, step{10, 50, 1, 1000}, rules(30, 60, 0, 0, nil), defDown(), "40 True ScaleUpLimit"},
		{"200 percent", nil, nil, step{10, 50, 1, 1000}, rules(0, 0, 200, 60, nil), defDown(), "30 True ScaleUpLimit"},
		{"one percent of one", nil, nil, step{1, 50, 1, 1000}, rules(0, 0, 1, 60, nil), defDown(), "2 True ScaleUpLimit"},
		{"the bound", nil, nil, step{10, 50, 1, 20}, rules(100, 60, 0, 0, nil), defDown(), "20 True TooManyReplicas"},
		{"down, more by pods", nil, nil, step{100, 2, 1, 1000}, def(), rules(20, 60, 1, 60, nil), "80 True ScaleDownLimit"},
		{"down, more by pods, two", nil, nil, step{100, 2, 1, 1000}, def(), rules(2, 60, 1, 60, nil), "98 True ScaleDownLimit"},
		{"down, the least change", nil, nil, step{100, 2, 1, 1000}, def(), choosing(min, rules(20, 60, 1, 60, nil)), "99 True ScaleDownLimit"},
		{"down, no change", nil, nil, step{100, 2, 1, 1000}, def(), choosing(autoscalingv2.DisabledPolicySelect, defDown()), "100 True ScaleDownLimit"},
		{"down, the bound", nil, nil, step{10, 0, 1, 1000}, def(), rules(100, 60, 0, 0, nil), "1 True TooFewReplicas"},
		{"down, the bound before percent", nil, nil, step{10, 2, 5, 1000}, def(), rules(0, 0, 100, 60, nil), "5 True TooFewReplicas"},
		{"down, five pods", nil, nil, step{10, 2, 1, 1000}, def(), rules(5, 60, 0, 0, nil), "5 True ScaleDownLimit"},
		{"down, half", nil, nil, step{10, 5, 1, 1000}, def(), rules(0, 0, 50, 60, nil), "5 False DesiredWithinRange"},
		{"added before", spread(two, 1, 5, 9), nil, step{100, 500, 1, 1000}, rules(150, 120, 0, 0, nil), defDown(), "235 True ScaleUpLimit"},
		{"added before, percent", spread(two, 1, 5, 9), nil, step{100, 500, 1, 1000}, rules(0, 0, 200, 120, nil), defDown(), "255 True ScaleUpLimit"},
		{"added before, the bound", spread(two, 1, 5, 9), nil, step{100, 500, 1, 200}, rules(300, 60, 0, 0, nil), defDown(), "200 True TooManyReplicas"},
		{"added more before than now allowed", spread(two, 1, 5, 9), nil, step{100, 500, 1, 200}, rules(5, 120, 0, 0, nil), defDown(), "100 True ScaleUpLimit"},
		{"added and removed before", spread(two, 4), spread(two, 2), step{6, 24, 1, 1000}, rules(0, 0, 300, 300, nil), defDown(), "16 True ScaleUpLimit"},
		{"removed before", nil, spread(two, 1, 5, 9), step{100, 2, 1, 1000}, def(), rules(5, 120, 0, 0, nil), "100 True ScaleDownLimit"},
		{"removed before, the bound", nil, spread(two, 1, 5, 9), step{100, 0, 5, 1000}, def(), rules(130, 120, 0, 0, nil), "5 True TooFewReplicas"},
		{"removed before, half", nil, spread(two, 2, 4, 6), step{100, 0, 1, 1000}, def(), rules(0, 0, 50, 120, nil), "56 True ScaleDownLimit"},
		{"removed and added before, half", spread(two, 2), spread(two, 4), step{10, 1, 1, 1000}, def(), rules(0, 0, 50, 180, nil), "6 True ScaleDownLimit"},
		{"more than fits", spread(two, math.MaxInt32, math.MaxInt32), nil, step{math.MaxInt32, 1, 1, math.MaxInt32}, def(), rules(math.MaxInt32, 120, 0, 0, nil), "1 False DesiredWithinRange"},
	} {
		tt.down.StabilizationWindowSeconds = new(int32)
		h := &history{added: tt.added, removed: tt.removed}
		b := &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: tt.up, ScaleDown: tt.down}
		n, _, limited := behaviour(b, h, tt.step, 5*time.Minute, now)
		if got := fmt.Sprint(n, " ", limited.status, " ", limited.reason); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestStabilize(t *testing.T) {
	for _, tt := range []struct {
		name            string
		recommendations []change
		from, to        int32
		up, down        int // seconds
		want            string
	}{
		{"nothing before", nil, 100, 5, 0, 0, "5 ReadyForNewScale"},
		{"down to the highest", ago(4, 2, 5, 1), 100, 3, 0, 180, "5 ScaleDownStabilized"},
		{"up to the lowest", ago(4, 2, 5, 1), 1, 7, 300, 0, "4 ScaleUpStabilized"},
		{"down, the window is up's", ago(1, 2, 2, 1), 100, 3, 300, 0, "3 ReadyForNewScale"},
		{"up, the window is down's", ago(4, 2, 5, 1), 1, 3, 0, 300, "3 ReadyForNewScale"},
		{"down, long ago", ago(10, 10, 9, 9), 100, 3, 0, 0, "3 ReadyForNewScale"},
		{"up, long ago", ago(10, 10, 9, 9), 1, 100, 0, 0, "100 ReadyForNewScale"},
		{"down, some long ago", ago(10, 10, 9, 9, 5, 2, 4, 1), 100, 3, 0, 180, "5 ScaleDownStabilized"},
		{"not up when it goes down", ago(2, 100, 3, 3), 2, 1, 300, 300, "2 ScaleDownStabilized"},
		{"not down when it goes up", ago(2, 100, 1, 3), 2, 3, 300, 300, "2 ScaleUpStabilized"},
	} {
		h := &history{recommendations: tt.recommendations}
		up, down := rules(1000, 60, 0, 0, new(int32(tt.up))), rules(1000, 60, 0, 0, new(int32(tt.down)))
		n, able, _ := behaviour(&autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: up, ScaleDown: down}, h, step{tt.from, tt.to, 0, 1000}, 5*time.Minute, now)
		if got := fmt.Sprint(n, " ", able.reason); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	// Without a window of its own scaling down has the controller's.
	h := &history{recommendations: ago(9, 4)}
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(4, 15, 0, 0, nil), ScaleDown: rules(0, 0, 100, 15, nil)}
	if n, _, _ := behaviour(b, h, step{9, 3, 1, 10}, 5*time.Minute, now); n != 9 {
		t.Errorf("%d without a window", n)
	}
}

// What is remembered is bounded, whatever was asked for.
func TestHistory(t *testing.T) {
	h, at := &history{}, now
	for i := range int32(10000) {
		at = at.Add(15 * time.Second)
		h.recommend(i, at, time.Hour)
		h.rescaled(i, i+1, at, 30*time.Minute, 0)
		h.rescaled(i, i-1, at, 0, 30*time.Minute)
	}
	if len(h.recommendations) != 241 || len(h.added) != 121 || len(h.removed) != 121 {
		t.Errorf("%d recommendations, %d and %d changes", len(h.recommendations), len(h.added), len(h.removed))
	}
	for range 100 {
		at = at.Add(15 * time.Second)
		h.recommend(7, at, time.Hour)
	}
	if last := h.recommendations[len(h.recommendations)-1]; last != (change{7, at}) || len(h.recommendations) != 142 {
		t.Errorf("%d recommendations, the last %v", len(h.recommendations), last)
	}
}

func TestConditions(t *testing.T) {
	first, later := metav1.Time{Time: now}, metav1.Time{Time: now.Add(time.Minute)}
	all := conditions(nil, first,
		condition{autoscalingv2.AbleToScale, corev1.ConditionTrue, "A", "a"},
		condition{autoscalingv2.ScalingActive, corev1.ConditionFalse, "B", "b"})
	all = conditions(all, later,
		condition{autoscalingv2.ScalingActive, corev1.ConditionTrue, "C", "c"},
		condition{autoscalingv2.AbleToScale, corev1.ConditionTrue, "D", "d"},
		condition{autoscalingv2.ScaledToZero, corev1.ConditionTrue, "E", "e"})
	want := []autoscalingv2.HorizontalPodAutoscalerCondition{
		{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "D", Message: "d", LastTransitionTime: first},
		{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionTrue, Reason: "C", Message: "c", LastTransitionTime: later},
		{Type: autoscalingv2.ScaledToZero, Status: corev1.ConditionTrue, Reason: "E", Message: "e", LastTransitionTime: later},
	}
	if fmt.Sprint(all) != fmt.Sprint(want) || !scaledToZero(all) {
		t.Errorf("got %v", all)
	}
	if all = withoutScaledToZero(all); len(all) != 2 || scaledToZero(all) {
		t.Errorf("got %v", all)
	}
}

func TestBound(t *testing.T) {
	object := []autoscalingv2.MetricSpec{{Type: autoscalingv2.ObjectMetricSourceType}}
	for _, tt := range []struct {
		name    string
		min     *int32
		metrics []autoscalingv2.MetricSpec
		current int32
		zeroed  bool
		want    decision
	}{
		{"within", new(int32(2)), nil, 5, false, decision{measure: true}},
		{"above", new(int32(2)), nil, 11, false, decision{replicas: 10, reason: "Current number of replicas above Spec.MaxReplicas"}},
		{"below", new(int32(2)), nil, 1, false, decision{replicas: 2, reason: "Current number of replicas below Spec.MinReplicas"}},
		{"a user's zero", nil, object, 0, false, decision{disabled: true}},
		{"our zero, and a metric without pods", new(int32(0)), object, 0, true, decision{measure: true}},
		{"our zero, and none", new(int32(0)), nil, 0, true, decision{disabled: true}},
		{"our zero, and no longer allowed", new(int32(1)), nil, 0, true, decision{measure: true}},
	} {
		if got := bound(&autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: tt.min, MaxReplicas: 10, Metrics: tt.metrics}, tt.current, tt.zeroed); got != tt.want {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestChoose(t *testing.T) {
	wants := func(n int32) proposal { return proposal{replicas: n, metric: fmt.Sprint("m", n)} }
	bad := failed("FailedGetX", fmt.Errorf("cause"), fmt.Errorf("whole"))
	for _, tt := range []struct {
		name string
		all  []proposal
		want string
	}{
		{"the most", []proposal{wants(3), wants(7), wants(5)}, "7 m7 true <nil>"},
		{"nothing", []proposal{wants(0)}, "0 m0 true <nil>"},
		{"one fails, the other adds", []proposal{bad, wants(7)}, "7 m7 true invalid metrics (1 invalid out of 2), first error is: whole"},
		{"one fails, the other keeps", []proposal{wants(5), bad}, "5 m5 true invalid metrics (1 invalid out of 2), first error is: whole"},
		{"one fails, the other removes", []proposal{wants(4), bad}, "4 m4 false invalid metrics (1 invalid out of 2), first error is: whole"},
		{"all fail", []proposal{bad, bad}, "0  false invalid metrics (2 invalid out of 2), first error is: whole"},
		{"none", nil, "0  false no metrics to calculate a replica count from"},
	} {
		best, failure, ok, err := choose(tt.all, 5)
		if got := fmt.Sprint(best.replicas, " ", best.metric, " ", ok, " ", err); got != tt.want || !ok && failure.reason == "" {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
