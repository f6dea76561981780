package registry

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var controllerRevisions = &Kind[*appsv1.ControllerRevision]{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ControllerRevision"),
	Plural:           "controllerrevisions",

	Validate: func(_ context.Context, r, old *appsv1.ControllerRevision) (errs field.ErrorList) {
		if len(r.Data.Raw) == 0 && r.Data.Object == nil {
			errs = append(errs, field.Required(field.NewPath("data"), "data is mandatory"))
		}
		errs = append(errs, nonnegative(r.Revision, field.NewPath("revision"))...)
		if old != nil {
			errs = append(errs, unchanged(r.Data, old.Data, field.NewPath("data"))...)
		}
		return errs
	},
	Columns: []Column[*appsv1.ControllerRevision]{
		nameColumn[*appsv1.ControllerRevision](),
		column("Controller", "string", "Controller of the object", 0, func(r *appsv1.ControllerRevision) any {
			ref := metav1.GetControllerOf(r)
			if ref == nil {
				return "<none>"
			}
			gk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
			return fmt.Sprintf("%s/%s", strings.ToLower(gk.String()), ref.Name)
		}),
		column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"], 0,
			func(r *appsv1.ControllerRevision) any { return r.Revision }),
		ageColumn[*appsv1.ControllerRevision](),
	},
}
