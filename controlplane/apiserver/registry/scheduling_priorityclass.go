package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var priorityClasses = &Kind[*schedulingv1.PriorityClass]{
	GroupVersionKind: schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"),
	Plural:           "priorityclasses",
	Short:            []string{"pc"},
	Cluster:          true,

	Default: func(p *schedulingv1.PriorityClass) {
		if p.PreemptionPolicy == nil {
			p.PreemptionPolicy = new(corev1.PreemptLowerPriority)
		}
	},
	Validate: func(_ context.Context, p, old *schedulingv1.PriorityClass) (errs field.ErrorList) {
		if old != nil && p.Value != old.Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
		}
		return errs
	},
	Columns: []Column[*schedulingv1.PriorityClass]{
		nameColumn[*schedulingv1.PriorityClass](),
		column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"], 0,
			func(p *schedulingv1.PriorityClass) any { return int64(p.Value) }),
		ageColumn[*schedulingv1.PriorityClass](),
	},
}
