package registry

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var resourceClaimTemplates = &Kind[*resourcev1.ResourceClaimTemplate]{
	GroupVersionKind: resourcev1.SchemeGroupVersion.WithKind("ResourceClaimTemplate"),
	Plural:           "resourceclaimtemplates",
	RecheckName:      true,

	Default: func(t *resourcev1.ResourceClaimTemplate) { defaultDeviceClaim(&t.Spec.Spec) },
	Validate: func(_ context.Context, t, old *resourcev1.ResourceClaimTemplate) (errs field.ErrorList) {
		at := field.NewPath("spec")
		errs = append(errs, validateTemplateMeta(&t.Spec.ObjectMeta, at.Child("metadata"))...)
		errs = append(errs, validateDeviceClaim(&t.Spec.Spec, at.Child("spec"))...)
		if old != nil {
			errs = append(errs, unchanged(t.Spec, old.Spec, at)...)
		}
		return errs
	},
	Columns: []Column[*resourcev1.ResourceClaimTemplate]{
		nameColumn[*resourcev1.ResourceClaimTemplate](),
		ageColumn[*resourcev1.ResourceClaimTemplate](),
	},
}
