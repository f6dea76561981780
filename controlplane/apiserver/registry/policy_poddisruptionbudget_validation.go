package registry

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateDisruptionBudget(_ context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &b.Spec
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		f.invalid(at, s, "minAvailable and maxUnavailable cannot be both set")
	}
	if v := s.MinAvailable; v != nil {
		f.add(intOrPercent(*v, at.Child("minAvailable")))
		f.add(atMostHundredPercent(*v, at.Child("minAvailable")))
	}
	if v := s.MaxUnavailable; v != nil {
		f.add(intOrPercent(*v, at.Child("maxUnavailable")))
		f.add(atMostHundredPercent(*v, at.Child("maxUnavailable")))
	}
	f.add(metavalidation.ValidateLabelSelector(s.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	if p := s.UnhealthyPodEvictionPolicy; p != nil {
		f.add(oneOf(*p, at.Child("unhealthyPodEvictionPolicy"), policyv1.AlwaysAllow, policyv1.IfHealthyBudget))
	}
	return f.list
}

func validateDisruptionBudgetStatus(_ context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	at := field.NewPath("status")
	s := &b.Status
	errs := metavalidation.ValidateConditions(s.Conditions, at.Child("conditions"))
	return append(errs, nonnegativeCounts(at, count{"disruptionsAllowed", int64(s.DisruptionsAllowed)}, count{"currentHealthy", int64(s.CurrentHealthy)},
		count{"desiredHealthy", int64(s.DesiredHealthy)}, count{"expectedPods", int64(s.ExpectedPods)})...)
}
