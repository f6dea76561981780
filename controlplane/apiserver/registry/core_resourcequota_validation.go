package registry

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func quotaResourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := resourceName(name, at)
	if !strings.Contains(string(name), "/") && !slices.Contains(quotaResources, name) && !isHugePagesQuota(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for quota"))
	}
	return errs
}

func quotaAmounts(list corev1.ResourceList, at *field.Path) field.ErrorList {
	var f faults
	for _, name := range sortedResources(list) {
		p := at.Key(string(name))
		f.add(quotaResourceName(name, p))
		f.add(quantity(name, list[name], p))
	}
	return f.list
}

func validateResourceQuota(_ context.Context, q, old *corev1.ResourceQuota) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(quotaAmounts(q.Spec.Hard, at.Child("hard")))
	f.add(validateScopes(&q.Spec, at.Child("scopes")))
	if q.Spec.ScopeSelector != nil {
		f.add(validateScopeSelector(&q.Spec, at.Child("scopeSelector")))
	}
	if old == nil {
		return f.list
	}
	now, was := slices.Sorted(slices.Values(q.Spec.Scopes)), slices.Sorted(slices.Values(old.Spec.Scopes))
	if !slices.Equal(slices.Compact(now), slices.Compact(was)) {
		f.invalid(at.Child("scopes"), q.Spec.Scopes, "field is immutable")
	}
	return f.list
}

func validateResourceQuotaStatus(_ context.Context, q, _ *corev1.ResourceQuota) field.ErrorList {
	at := field.NewPath("status")
	return append(quotaAmounts(q.Status.Hard, at.Child("hard")), quotaAmounts(q.Status.Used, at.Child("used"))...)
}

var quotaScopes = []corev1.ResourceQuotaScope{
	corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
	corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
	corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	corev1.ResourceQuotaScopeVolumeAttributesClass,
}

// scopeFits reports whether a scope means something for a resource.
func scopeFits(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	compute := name == corev1.ResourcePods || name == corev1.ResourceCPU || name == corev1.ResourceMemory ||
		name == corev1.ResourceRequestsCPU || name == corev1.ResourceRequestsMemory ||
		name == corev1.ResourceLimitsCPU || name == corev1.ResourceLimitsMemory ||
		name == corev1.ResourceEphemeralStorage || name == corev1.ResourceRequestsEphemeralStorage || name == corev1.ResourceLimitsEphemeralStorage
	switch scope {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return compute
	case corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage
	}
	return true
}

func scopesConflict(scopes []corev1.ResourceQuotaScope) (n int) {
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			n++
		}
	}
	return n
}

// foreign counts the hard limits that a scope cannot be applied to.
func foreign(s *corev1.ResourceQuotaSpec, scope corev1.ResourceQuotaScope) (n int) {
	for name := range s.Hard {
		standard := slices.Contains(quotaResources, name) || isHugePagesQuota(name)
		if standard && !scopeFits(scope, name) {
			n++
		}
	}
	return n
}

func validateScopes(s *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	var f faults
	for _, scope := range s.Scopes {
		if !slices.Contains(quotaScopes, scope) {
			f.invalid(at, s.Scopes, "unsupported scope")
		}
		for range foreign(s, scope) {
			f.invalid(at, s.Scopes, "unsupported scope applied to resource")
		}
	}
	for range scopesConflict(s.Scopes) {
		f.invalid(at, s.Scopes, "conflicting scopes")
	}
	return f.list
}

func validateScopeSelector(s *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	var f faults
	p := at.Child("matchExpressions")
	var scopes []corev1.ResourceQuotaScope
	for _, r := range s.ScopeSelector.MatchExpressions {
		scopes = append(scopes, r.ScopeName)
		if !slices.Contains(quotaScopes, r.ScopeName) {
			f.invalid(p.Child("scopeName"), r.ScopeName, "unsupported scope")
		}
		for range foreign(s, r.ScopeName) {
			f.invalid(p, s.ScopeSelector, "unsupported scope applied to resource")
		}
		switch r.ScopeName {
		case corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass:
		default:
			if slices.Contains(quotaScopes, r.ScopeName) && r.Operator != corev1.ScopeSelectorOpExists {
				f.invalid(p.Child("operator"), r.Operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity")
			}
		}
		switch r.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(r.Values) == 0 {
				f.required(p.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				f.invalid(p.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
			}
		default:
			f.invalid(p.Child("operator"), r.Operator, "not a valid selector operator")
		}
	}
	for range scopesConflict(scopes) {
		f.invalid(p, s.Scopes, "conflicting scopes")
	}
	return f.list
}
