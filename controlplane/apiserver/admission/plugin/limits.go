package plugin

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// podWithin says what of the pod is outside a limit.
func podWithin(item *corev1.LimitRangeItem, pod *corev1.Pod) (errs []error) {
	switch item.Type {
	case corev1.LimitTypeContainer:
		for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			errs = append(errs, within(item, c.Resources.Requests, c.Resources.Limits)...)
		}
	case corev1.LimitTypePod:
		spec := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
		errs = within(item, resourcehelper.PodRequests(pod, spec), resourcehelper.PodLimits(pod, spec))
	}
	return errs
}

func within(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) (errs []error) {
	for _, rule := range []struct {
		bounds corev1.ResourceList
		check  func(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error
	}{{item.Min, least}, {item.Max, most}, {item.MaxLimitRequestRatio, ratio}} {
		for _, name := range slices.Sorted(maps.Keys(rule.bounds)) {
			if err := rule.check(item.Type, name, rule.bounds[name], requests, limits); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// claimWithin says what of a claim's request is outside a limit.
func claimWithin(item *corev1.LimitRangeItem, claim *corev1.PersistentVolumeClaim) (errs []error) {
	if item.Type != corev1.LimitTypePersistentVolumeClaim {
		return nil
	}
	requests := claim.Spec.Resources.Requests
	for _, name := range slices.Sorted(maps.Keys(item.Min)) {
		if err := least(item.Type, name, item.Min[name], requests, nil); err != nil {
			errs = append(errs, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.Max)) {
		bound := item.Max[name]
		request, ok := requests[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, item.Type, bound.String()))
		case request.Cmp(bound) > 0:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type, bound.String(), request.String()))
		}
	}
	return errs
}

func least(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, asked := requests[name]
	limit, limited := limits[name]
	text := fmt.Sprintf("minimum %s usage per %s is %s", name, kind, bound.String())
	switch {
	case !asked:
		return fmt.Errorf("%s.  No request is specified", text)
	case request.Cmp(bound) < 0:
		return fmt.Errorf("%s, but request is %s", text, request.String())
	case limited && limit.Cmp(bound) < 0:
		return fmt.Errorf("%s, but limit is %s", text, limit.String())
	}
	return nil
}

func most(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, asked := requests[name]
	limit, limited := limits[name]
	text := fmt.Sprintf("maximum %s usage per %s is %s", name, kind, bound.String())
	switch {
	case !limited:
		return fmt.Errorf("%s.  No limit is specified", text)
	case limit.Cmp(bound) > 0:
		return fmt.Errorf("%s, but limit is %s", text, limit.String())
	case asked && request.Cmp(bound) > 0:
		return fmt.Errorf("%s, but request is %s", text, request.String())
	}
	return nil
}

func ratio(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, limit := requests[name], limits[name]
	text := fmt.Sprintf("%s max limit to request ratio per %s is %s", name, kind, bound.String())
	switch {
	case request.IsZero():
		return fmt.Errorf("%s, but no request is specified or request is 0", text)
	case limit.IsZero():
		return fmt.Errorf("%s, but no limit is specified or limit is 0", text)
	}
	if got := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); got > bound.AsApproximateFloat64() {
		return fmt.Errorf("%s, but provided ratio is %f", text, got)
	}
	return nil
}
