package extension

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"knarr/controlplane/apiserver/registry"
)

func (k *kind) ValidateObject(ctx context.Context, obj, old registry.Object) field.ErrorList {
	return k.validate(ctx, obj, old)
}

// validate holds an object against the schema, the lists' rules and the rules
// in CEL. On an update, what was wrong before and has not changed may stay.
func (k *kind) validate(ctx context.Context, obj, old registry.Object) field.ErrorList {
	s, err := k.shape(k.version.Name)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	u := obj.(*unstructured.Unstructured)
	if errs := k.typeMeta(u); len(errs) > 0 {
		return errs
	}
	var errs field.ErrorList
	var was map[string]any
	var both *common.CorrelatedObject
	if old == nil {
		errs = validation.ValidateCustomResource(nil, u.Object, s.whole)
	} else {
		was = old.(*unstructured.Unstructured).Object
		both = common.NewCorrelatedObject(u.Object, was, &model.Structural{Structural: s.structural})
		errs = validation.ValidateCustomResourceUpdate(nil, u.Object, was, s.whole, validation.WithRatcheting(both))
	}
	errs = append(errs, k.replicas(u, true)...)
	errs = append(errs, objectmeta.Validate(nil, u.Object, s.structural, false)...)
	if old == nil || len(listtype.ValidateListSetsAndMaps(nil, s.structural, was)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, u.Object)...)
	}
	return append(errs, s.validateRules(ctx, errs, u.Object, was, both)...)
}

// validateStatus holds the status against its part of the schema.
func (k *kind) validateStatus(ctx context.Context, obj, old registry.Object) field.ErrorList {
	s, err := k.shape(k.version.Name)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	u, was := obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if errs := k.typeMeta(u); len(errs) > 0 {
		return errs
	}
	var errs field.ErrorList
	both := common.NewCorrelatedObject(u.Object, was.Object, &model.Structural{Structural: s.structural})
	if status, ok := u.Object["status"]; ok {
		var options []validation.ValidationOption
		if s.structural != nil {
			options = append(options, validation.WithRatcheting(both.Key("status")))
		}
		errs = validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, was.Object["status"], s.status, options...)
	}
	errs = append(errs, k.replicas(u, false)...)
	if bad := listtype.ValidateListSetsAndMaps(nil, s.structural, u.Object); len(bad) > 0 &&
		len(listtype.ValidateListSetsAndMaps(nil, s.structural, was.Object)) == 0 {
		errs = append(errs, bad...)
	}
	return append(errs, s.validateRules(ctx, errs, u.Object, was.Object, both)...)
}

// blocking are the faults that leave an object no rule can be asked about.
var blocking = []field.ErrorType{field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid}

// validateRules asks the rules, unless earlier faults stand in the way.
func (s *shape) validateRules(ctx context.Context, errs field.ErrorList, obj, old map[string]any, both *common.CorrelatedObject) field.ErrorList {
	if s.rules == nil {
		return nil
	}
	if slices.ContainsFunc(errs, func(e *field.Error) bool { return slices.Contains(blocking, e.Type) }) {
		return field.ErrorList{field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
	}
	if s.tree.keep(ctx, s.kept, obj, old, celconfig.RuntimeCELCostBudget) {
		return nil
	}
	if both == nil {
		out, _ := s.rules.Validate(ctx, nil, s.structural, obj, nil, celconfig.RuntimeCELCostBudget)
		return out
	}
	out, _ := s.rules.Validate(ctx, nil, s.structural, obj, old, celconfig.RuntimeCELCostBudget, cel.WithRatcheting(both))
	return out
}

func (k *kind) typeMeta(u *unstructured.Unstructured) (errs field.ErrorList) {
	if u.GetKind() != k.gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), u.GetKind(), "must be "+k.gvk.Kind))
	}
	if gv := k.gvk.GroupVersion().String(); u.GetAPIVersion() != gv {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), "must be "+gv))
	}
	return errs
}

// replicas checks what the scale subresource is about.
func (k *kind) replicas(u *unstructured.Unstructured, spec bool) (errs field.ErrorList) {
	if k.version.Subresources == nil || k.version.Subresources.Scale == nil {
		return nil
	}
	scale := k.version.Subresources.Scale
	count := func(path string) {
		at := field.NewPath(path)
		n, _, err := unstructured.NestedInt64(u.Object, pathOf(path)...)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(at, n, err.Error()))
		case n < 0:
			errs = append(errs, field.Invalid(at, n, "should be a non-negative integer"))
		case n > math.MaxInt32:
			errs = append(errs, field.Invalid(at, n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)))
		}
	}
	if spec {
		count(scale.SpecReplicasPath)
	}
	count(scale.StatusReplicasPath)
	if p := scale.LabelSelectorPath; p != nil {
		if text, _, err := unstructured.NestedString(u.Object, pathOf(*p)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*p), text, err.Error()))
		}
	}
	return errs
}

// Warnings tell of finalizers whose names are no good.
func (k *kind) Warnings(_ context.Context, obj, old registry.Object) (out []string) {
	finalizers := obj.GetFinalizers()
	if old != nil {
		finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return slices.Contains(old.GetFinalizers(), f) })
	}
	slices.Sort(finalizers)
	for _, f := range slices.Compact(finalizers) {
		for _, msg := range utilvalidation.IsQualifiedName(f) {
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: %s", f, msg))
		}
		switch {
		case strings.Contains(f, "/"), f == metav1.FinalizerOrphanDependents, f == metav1.FinalizerDeleteDependents, f == string(corev1.FinalizerKubernetes):
		case strings.Contains(f, "."):
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers", f))
		default:
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers", f))
		}
	}
	return out
}
