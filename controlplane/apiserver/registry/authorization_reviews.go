package registry

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var subjectAccessReviews = &Kind[*authorizationv1.SubjectAccessReview]{
	GroupVersionKind: authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"),
	Plural:           "subjectaccessreviews",
	Cluster:          true,
	Virtual:          true,
	Validate: func(_ context.Context, r, _ *authorizationv1.SubjectAccessReview) field.ErrorList {
		return append(validateReviewSpec(&r.Spec), emptyMeta(&r.ObjectMeta)...)
	},
}

var localSubjectAccessReviews = &Kind[*authorizationv1.LocalSubjectAccessReview]{
	GroupVersionKind: authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"),
	Plural:           "localsubjectaccessreviews",
	Virtual:          true,
	Validate: func(_ context.Context, r, _ *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
		errs := validateReviewSpec(&r.Spec)
		meta := r.ObjectMeta
		meta.Namespace = ""
		errs = append(errs, emptyMeta(&meta)...)
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
		return append(errs, emptyMeta(&r.ObjectMeta)...)
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
	return errs
}

// emptyMeta refuses metadata in a question: nothing is stored.
func emptyMeta(m *metav1.ObjectMeta) field.ErrorList {
	meta := *m
	meta.ManagedFields = nil
	if same(meta, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), m, "must be empty")}
}
