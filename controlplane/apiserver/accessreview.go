package apiserver

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
)

// A question is what an access review asks.
type question struct {
	who         user.Info
	resource    *authorizationv1.ResourceAttributes
	nonResource *authorizationv1.NonResourceAttributes
}

// about is the question of a review that names a user.
func about(spec *authorizationv1.SubjectAccessReviewSpec) *question {
	u := &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	for k, v := range spec.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[k] = v
	}
	return &question{u, spec.ResourceAttributes, spec.NonResourceAttributes}
}

// validate judges a question; named says that it must name a user.
func (q *question) validate(named bool, meta metav1.ObjectMeta) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	switch {
	case q.resource != nil && q.nonResource != nil:
		errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), untagged(q.nonResource), `cannot be specified in combination with resourceAttributes`))
	case q.resource == nil && q.nonResource == nil:
		errs = append(errs, field.Invalid(spec.Child("resourceAttributes"), q.resource, `exactly one of nonResourceAttributes or resourceAttributes must be specified`))
	}
	if named && q.who.GetName() == "" && len(q.who.GetGroups()) == 0 {
		errs = append(errs, field.Invalid(spec.Child("user"), "", `at least one of user or group must be specified`))
	}
	if q.resource != nil {
		errs = append(errs, validateSelectors(q.resource, field.NewPath("spec.resourceAttributes"))...)
	}
	bare := meta
	bare.ManagedFields = nil
	if !equality.Semantic.DeepEqual(metav1.ObjectMeta{}, bare) {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), meta, `must be empty`))
	}
	return errs
}

// untagged is n as upstream's messages show it.
func untagged(n *authorizationv1.NonResourceAttributes) any {
	return &struct{ Path, Verb string }{n.Path, n.Verb}
}

func validateSelectors(r *authorizationv1.ResourceAttributes, at *field.Path) (errs field.ErrorList) {
	form := func(at *field.Path, raw string, requirements int) {
		switch {
		case raw != "" && requirements > 0:
			errs = append(errs, field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements"))
		case raw == "" && requirements == 0:
			errs = append(errs, field.Required(at.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at)))
		}
	}
	if f := r.FieldSelector; f != nil {
		at := at.Child("fieldSelector")
		form(at, f.RawSelector, len(f.Requirements))
		for i, req := range f.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(req,
				metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, at.Child("requirements").Index(i))...)
		}
	}
	if l := r.LabelSelector; l != nil {
		at := at.Child("labelSelector")
		form(at, l.RawSelector, len(l.Requirements))
		for i, req := range l.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(req,
				metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// answer asks the authorisers.
func (s *Server) answer(ctx context.Context, q *question) authorizationv1.SubjectAccessReviewStatus {
	a := &authz.Attributes{User: q.who}
	var faults []string
	if n := q.nonResource; n != nil {
		a.Verb, a.Path = n.Verb, n.Path
	}
	if r := q.resource; r != nil {
		a.IsResource = true
		a.Verb, a.Namespace, a.Group, a.Version = r.Verb, r.Namespace, r.Group, r.Version
		a.Resource, a.Subresource, a.Name = r.Resource, r.Subresource, r.Name
		if a.Version == "" {
			a.Version = "*"
		}
		var err error
		if a.FieldSelector, err = fieldSelector(r.FieldSelector); err != nil {
			faults = append(faults, unread("fieldSelector", a.FieldSelector))
		}
		if a.LabelSelector, err = labelSelector(r.LabelSelector); err != nil {
			faults = append(faults, unread("labelSelector", a.LabelSelector))
		}
	}
	decision, reason, err := s.authz.Authorize(ctx, a)
	if err != nil {
		faults = append([]string{err.Error()}, faults...)
	}
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny,
		Reason: reason, EvaluationError: strings.Join(faults, "; "),
	}
}

// unread says that a selector could not be understood and so narrows nothing,
// or only by what is left of it.
func unread(name, left string) string {
	if left != "" {
		name += " partially"
	}
	return "spec.resourceAttributes." + name + " ignored due to parse error"
}

// invalid is upstream's refusal of a review, which names no kind.
func invalid(errs field.ErrorList) error {
	return apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("").GroupKind(), "", errs)
}

func (s *Server) subjectAccessReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.SubjectAccessReview)
	q := about(&review.Spec)
	if errs := q.validate(true, review.ObjectMeta); len(errs) > 0 {
		return nil, invalid(errs)
	}
	review.Status = s.answer(ctx, q)
	return review, nil
}

func (s *Server) localSubjectAccessReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.LocalSubjectAccessReview)
	q := about(&review.Spec)
	meta := review.ObjectMeta
	meta.Namespace = ""
	errs := q.validate(true, meta)
	namespace := request.InfoFrom(ctx).Namespace
	if q.resource != nil && q.resource.Namespace != namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), q.resource.Namespace, `must match metadata.namespace`))
	}
	if q.nonResource != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), untagged(q.nonResource), `disallowed on this kind of request`))
	}
	if len(errs) > 0 {
		return nil, invalid(errs)
	}
	review.Status = s.answer(ctx, q)
	return review, nil
}

func (s *Server) selfSubjectAccessReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.SelfSubjectAccessReview)
	q := &question{request.UserFrom(ctx), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes}
	if errs := q.validate(false, review.ObjectMeta); len(errs) > 0 {
		return nil, invalid(errs)
	}
	review.Status = s.answer(ctx, q)
	return review, nil
}

func (s *Server) selfSubjectRulesReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.SelfSubjectRulesReview)
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	rules := s.authz.Rules(request.UserFrom(ctx), review.Spec.Namespace)
	review.Status = authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    append([]authorizationv1.ResourceRule{}, rules.Resource...),
		NonResourceRules: append([]authorizationv1.NonResourceRule{}, rules.NonResource...),
		Incomplete:       rules.Incomplete,
	}
	if rules.Err != nil {
		review.Status.EvaluationError = rules.Err.Error()
	}
	review.ObjectMeta, review.Spec = metav1.ObjectMeta{}, authorizationv1.SelfSubjectRulesReviewSpec{}
	return review, nil
}
