package registry

import (
	"context"
	"encoding/json"
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
	RecheckName:      true,

	Validate: func(_ context.Context, r, old *appsv1.ControllerRevision) (errs field.ErrorList) {
		at := field.NewPath("data")
		errs = append(errs, nonnegative(r.Revision, field.NewPath("revision"))...)
		if old != nil {
			return append(errs, unchanged(r.Data, old.Data, at)...)
		}
		var v any
		if r.Data.Raw == nil {
			return append(errs, field.Required(at, "data is mandatory"))
		}
		if err := json.Unmarshal(r.Data.Raw, &v); err != nil {
			return append(errs, field.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data: %v", err)))
		}
		if v == nil {
			errs = append(errs, field.Required(at, "data is mandatory"))
		} else if _, ok := v.(map[string]any); !ok {
			errs = append(errs, field.Required(at, "data must be a valid JSON object"))
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
