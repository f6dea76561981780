package registry

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var clusterRoles = &Kind[*rbacv1.ClusterRole]{
	GroupVersionKind: rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
	Plural:           "clusterroles",
	Cluster:          true,
	NameRule:         NameIsPathSegment,
	CreateOnUpdate:   true,

	Validate: func(_ context.Context, r, old *rbacv1.ClusterRole) field.ErrorList {
		errs := validatePolicyRules(r.Rules, false)
		if r.AggregationRule == nil {
			return errs
		}
		at := field.NewPath("aggregationRule", "clusterRoleSelectors")
		selectors := r.AggregationRule.ClusterRoleSelectors
		if len(selectors) == 0 {
			return append(errs, field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
		}
		opts := metavalidation.LabelSelectorValidationOptions{
			AllowInvalidLabelValueInSelector: old != nil && hasInvalidSelector(old.AggregationRule)}
		for i := range selectors {
			errs = append(errs, metavalidation.ValidateLabelSelector(&selectors[i], opts, at.Index(i))...)
			if _, err := metav1.LabelSelectorAsSelector(&selectors[i]); err != nil {
				errs = append(errs, field.Invalid(at.Index(i), nil, "invalid label selector."))
			}
		}
		return errs
	},
}

func hasInvalidSelector(a *rbacv1.AggregationRule) bool {
	if a == nil {
		return false
	}
	for i := range a.ClusterRoleSelectors {
		if len(metavalidation.ValidateLabelSelector(&a.ClusterRoleSelectors[i], metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
			return true
		}
	}
	return false
}
