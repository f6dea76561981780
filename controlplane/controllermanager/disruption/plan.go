package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// plan is the budget with the status that pods give it, of which expected
// should be there; when to look again; and the pods that stayed though they had
// been expected to go.
func plan(budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod, expected int, now time.Time) (next *policyv1.PodDisruptionBudget, again time.Duration, left []*corev1.Pod, err error) {
	desired, expected, err := desired(&budget.Spec, expected)
	if err != nil {
		return nil, 0, nil, err
	}
	disrupted := map[string]metav1.Time{}
	healthy := 0
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		at, announced := budget.Status.DisruptedPods[pod.Name]
		if announced {
			if wait := at.Add(disruptionTimeout).Sub(now); wait >= 0 {
				disrupted[pod.Name] = at
				if again == 0 || wait < again {
					again = max(wait, time.Millisecond)
				}
				if wait > 0 {
					continue
				}
			} else {
				left = append(left, pod)
			}
		}
		if ready(pod) {
			healthy++
		}
	}
	allowed := 0
	if expected > 0 {
		allowed = max(0, healthy-desired)
	}
	next = budget.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		CurrentHealthy: int32(healthy), DesiredHealthy: int32(desired), ExpectedPods: int32(expected),
		DisruptionsAllowed: int32(allowed), DisruptedPods: disrupted,
		ObservedGeneration: budget.Generation, Conditions: next.Status.Conditions,
	}
	condition := metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
		Reason: policyv1.InsufficientPodsReason, ObservedGeneration: budget.Generation}
	if allowed > 0 {
		condition.Status, condition.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	meta.SetStatusCondition(&next.Status.Conditions, condition)
	return next, again, left, nil
}

// desired is how many pods have to be healthy.
func desired(spec *policyv1.PodDisruptionBudgetSpec, expected int) (int, int, error) {
	switch {
	case spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		return max(0, expected-n), expected, err
	case spec.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
		return n, expected, err
	}
	return 0, 0, nil
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// stale reports whether a disruption was announced of a pod that still runs on,
// and after what time nobody means it any more. What the kubelet announces is
// meant however long it takes.
func stale(pod *corev1.Pod, now time.Time) (left time.Duration, announced bool) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0, false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason != corev1.PodReasonTerminationByKubelet {
			return max(0, disruptionTimeout-now.Sub(c.LastTransitionTime.Time)), true
		}
	}
	return 0, false
}
