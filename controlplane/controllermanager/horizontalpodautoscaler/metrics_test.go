package horizontalpodautoscaler

import (
	"errors"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

func TestActionAndFault(t *testing.T) {
	for _, c := range []struct {
		from, to int32
		want     string
	}{{1, 2, "scale_up"}, {2, 1, "scale_down"}, {2, 2, "none"}} {
		if got := action(c.from, c.to); got != c.want {
			t.Errorf("%d to %d: %s", c.from, c.to, got)
		}
	}
	bad := errors.New("no")
	for _, c := range []struct {
		reason string
		status corev1.ConditionStatus
		err    error
		want   string
	}{
		{"InvalidSelector", corev1.ConditionFalse, bad, "spec"}, {"FailedGetScale", corev1.ConditionFalse, bad, "internal"},
		{"InvalidSelector", corev1.ConditionTrue, bad, "internal"}, {"InvalidSelector", corev1.ConditionFalse, nil, "none"},
	} {
		conditions := []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: c.status, Reason: c.reason}}
		if got := fault(conditions, c.err); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
