package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var podTemplates = &Kind[*corev1.PodTemplate]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PodTemplate"),
	Plural:           "podtemplates",

	Default: func(t *corev1.PodTemplate) { defaultTemplate(&t.Template) },
	Prepare: func(_ context.Context, t, old *corev1.PodTemplate) {
		t.Generation = 1
		if old != nil {
			t.Generation = old.Generation
			if !same(t.Template, old.Template) {
				t.Generation++
			}
		}
	},
	Pods: func(o *corev1.PodTemplate) *corev1.PodSpec { return &o.Template.Spec },
	Validate: func(_ context.Context, t, _ *corev1.PodTemplate) field.ErrorList {
		return validateTemplate(&t.Template, field.NewPath("template"))
	},
	Warn: func(_ context.Context, t, old *corev1.PodTemplate) []string {
		if old != nil && same(t.Template, old.Template) {
			return nil
		}
		return warnTemplate(&t.Template, field.NewPath("template"))
	},
	Columns: append(append([]Column[*corev1.PodTemplate]{nameColumn[*corev1.PodTemplate]()},
		always(templateColumns(func(t *corev1.PodTemplate) *corev1.PodSpec { return &t.Template.Spec }))...),
		column("Pod Labels", "string", "The labels for the pod template.", 0,
			func(t *corev1.PodTemplate) any { return labels.FormatLabels(t.Template.Labels) })),
}

// always makes wide columns ordinary.
func always[T Object](columns []Column[T]) []Column[T] {
	for i := range columns {
		columns[i].Priority = 0
	}
	return columns
}
