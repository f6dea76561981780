package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

var limitRanges = &Kind[*corev1.LimitRange]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("LimitRange"),
	Plural:           "limitranges",
	RecheckName:      true,
	Short:            []string{"limits"},
	CreateOnUpdate:   true,

	Default: func(l *corev1.LimitRange) {
		for i := range l.Spec.Limits {
			defaultLimit(&l.Spec.Limits[i])
		}
	},
	Prepare: func(_ context.Context, l, old *corev1.LimitRange) {
		if old == nil && l.Name == "" && l.GenerateName == "" {
			l.Name = string(uuid.NewUUID())
		}
	},
	Validate: validateLimitRange,
}

// defaultLimit derives a container's default limit from the maximum, its
// default request from the default limit, then from the minimum.
func defaultLimit(l *corev1.LimitRangeItem) {
	for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
		roundUp(list)
	}
	if l.Type != corev1.LimitTypeContainer {
		return
	}
	from := func(to *corev1.ResourceList, list corev1.ResourceList) {
		if *to == nil {
			*to = corev1.ResourceList{}
		}
		for name, q := range list {
			if _, ok := (*to)[name]; !ok {
				(*to)[name] = q.DeepCopy()
			}
		}
	}
	from(&l.Default, l.Max)
	from(&l.DefaultRequest, l.Default)
	from(&l.DefaultRequest, l.Min)
}
