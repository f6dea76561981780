package registry

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateLimitRange(_ context.Context, l, _ *corev1.LimitRange) field.ErrorList {
	var f faults
	seen := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		f.add(limitType(item.Type, at.Child("type")))
		if seen[item.Type] {
			f.duplicate(at.Child("type"), item.Type)
		}
		seen[item.Type] = true
		f.add(validateLimit(item, at))
	}
	return f.list
}

func limitType(t corev1.LimitType, at *field.Path) field.ErrorList {
	errs := invalid(utilvalidation.IsQualifiedName(string(t)), t, at)
	if len(errs) > 0 || strings.Contains(string(t), "/") {
		return errs
	}
	switch t {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
		return nil
	}
	return field.ErrorList{field.Invalid(at, t, "must be a standard limit type or fully qualified")}
}

func validateLimit(l *corev1.LimitRangeItem, at *field.Path) field.ErrorList {
	var f faults
	nameRule := resourceName
	if l.Type == corev1.LimitTypePod || l.Type == corev1.LimitTypeContainer {
		nameRule = containerResourceName
	}
	names := corev1.ResourceList{}
	list := func(values corev1.ResourceList, part string) {
		for _, name := range sortedResources(values) {
			f.add(nameRule(name, at.Child(part).Key(string(name))))
			names[name] = resource.Quantity{}
		}
	}
	list(l.Max, "max")
	list(l.Min, "min")
	if l.Type == corev1.LimitTypePod {
		if len(l.Default) > 0 {
			f.forbidden(at.Child("default"), "may not be specified when `type` is 'Pod'")
		}
		if len(l.DefaultRequest) > 0 {
			f.forbidden(at.Child("defaultRequest"), "may not be specified when `type` is 'Pod'")
		}
	} else {
		list(l.Default, "default")
		list(l.DefaultRequest, "defaultRequest")
	}
	if l.Type == corev1.LimitTypePersistentVolumeClaim {
		_, low := l.Min[corev1.ResourceStorage]
		_, high := l.Max[corev1.ResourceStorage]
		if !low && !high {
			f.required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided")
		}
	}
	list(l.MaxLimitRequestRatio, "maxLimitRequestRatio")
	for _, name := range sortedResources(names) {
		f.add(validateLimitOrder(l, name, at))
	}
	return f.list
}

// validateLimitOrder: min <= default request <= default <= max.
func validateLimitOrder(l *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) field.ErrorList {
	var f faults
	low, hasLow := l.Min[name]
	high, hasHigh := l.Max[name]
	ratio, hasRatio := l.MaxLimitRequestRatio[name]
	var limit, request resource.Quantity
	var hasLimit, hasRequest bool
	if l.Type != corev1.LimitTypePod {
		limit, hasLimit = l.Default[name]
		request, hasRequest = l.DefaultRequest[name]
	}
	order := func(ok bool, less, more resource.Quantity, part string, shown resource.Quantity, lessName, moreName string) {
		if ok && less.Cmp(more) > 0 {
			f.invalid(at.Child(part).Key(string(name)), shown,
				fmt.Sprintf("%s value %s is greater than %s value %s", lessName, less.String(), moreName, more.String()))
		}
	}
	order(hasLow && hasHigh, low, high, "min", low, "min", "max")
	order(hasRequest && hasLow, low, request, "defaultRequest", request, "min", "default request")
	order(hasRequest && hasHigh, request, high, "defaultRequest", request, "default request", "max")
	order(hasRequest && hasLimit, request, limit, "defaultRequest", request, "default request", "default limit")
	order(hasLimit && hasLow, low, limit, "default", low, "min", "default")
	order(hasLimit && hasHigh, limit, high, "default", high, "default", "max")
	p := at.Child("maxLimitRequestRatio").Key(string(name))
	if hasRatio && ratio.Cmp(resource.MustParse("1")) < 0 {
		f.invalid(p, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String()))
	}
	if hasRatio && hasLow && hasHigh {
		if most := high.AsApproximateFloat64() / low.AsApproximateFloat64(); ratio.AsApproximateFloat64() > most {
			f.invalid(p, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), most))
		}
	}
	if !overcommits(name) && hasLimit && hasRequest && limit.Cmp(request) != 0 {
		f.invalid(at.Child("defaultRequest").Key(string(name)), request,
			fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(), request.String(), name))
	}
	return f.list
}
