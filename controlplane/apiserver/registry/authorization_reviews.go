package registry

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var subjectAccessReviews = &Kind[*authorizationv1.SubjectAccessReview]{
	GroupVersionKind: authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"),
	Plural:           "subjectaccessreviews",
	Cluster:          true,
	Virtual:          true,
	Validate: func(_ context.Context, r, _ *authorizationv1.SubjectAccessReview) field.ErrorList {
		return append(validateReviewSpec(&r.Spec), emptyMeta(&r.ObjectMeta, "", "must be empty")...)
	},
}

var localSubjectAccessReviews = &Kind[*authorizationv1.LocalSubjectAccessReview]{
	GroupVersionKind: authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"),
	Plural:           "localsubjectaccessreviews",
	Virtual:          true,
	Validate: func(_ context.Context, r, _ *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
		errs := validateReviewSpec(&r.Spec)
		errs = append(errs, emptyMeta(&r.ObjectMeta, r.Namespace, "must be empty except for namespace")...)
		if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
			errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), a.Namespace, "must match metadata.namespace"))
		}
		if r.Spec.NonResourceAttributes != nil {
			errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), r.Spec.NonResourceAttributes, "disallowed on this kind of request"))
		}
		return errs
	},
}

var selfSubjectAccessReviews = &Kind[*authorizationv1.SelfSubjectAccessReview]{
	GroupVersionKind: authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"),
	Plural:           "selfsubjectaccessreviews",
	Cluster:          true,
	Virtual:          true,
	Validate: func(_ context.Context, r, _ *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
		errs := validateReviewAttributes(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
		return append(errs, emptyMeta(&r.ObjectMeta, "", "must be empty")...)
	},
}

var selfSubjectRulesReviews = &Kind[*authorizationv1.SelfSubjectRulesReview]{
	GroupVersionKind: authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectRulesReview"),
	Plural:           "selfsubjectrulesreviews",
	Cluster:          true,
	Virtual:          true,
}

func validateReviewSpec(s *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateReviewAttributes(s.ResourceAttributes, s.NonResourceAttributes)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), s.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateReviewAttributes(resource *authorizationv1.ResourceAttributes, url *authorizationv1.NonResourceAttributes) (errs field.ErrorList) {
	at := field.NewPath("spec")
	switch {
	case resource != nil && url != nil:
		errs = append(errs, field.Invalid(at.Child("nonResourceAttributes"), url, "cannot be specified in combination with resourceAttributes"))
	case resource == nil && url == nil:
		errs = append(errs, field.Invalid(at.Child("resourceAttributes"), url, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if resource == nil {
		return errs
	}
	within := field.NewPath("spec.resourceAttributes")
	if s := resource.FieldSelector; s != nil {
		at := within.Child("fieldSelector")
		errs = append(errs, rawOrRequired(s.RawSelector, len(s.Requirements), at)...)
		for i, r := range s.Requirements {
			opts := metavalidation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
			errs = append(errs, metavalidation.ValidateFieldSelectorRequirement(r, opts, at.Child("requirements").Index(i))...)
		}
	}
	if s := resource.LabelSelector; s != nil {
		at := within.Child("labelSelector")
		errs = append(errs, rawOrRequired(s.RawSelector, len(s.Requirements), at)...)
		for i, r := range s.Requirements {
			opts := metavalidation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
			errs = append(errs, metavalidation.ValidateLabelSelectorRequirement(r, opts, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// rawOrRequired refuses a selector in both forms, or in none.
func rawOrRequired(raw string, requirements int, at *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(at.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at))}
	}
	return nil
}

// emptyMeta refuses metadata but for the namespace in a question: nothing is stored.
func emptyMeta(m *metav1.ObjectMeta, namespace, why string) field.ErrorList {
	meta := *m
	meta.ManagedFields = nil
	if same(meta, metav1.ObjectMeta{Namespace: namespace}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), m, why)}
}
