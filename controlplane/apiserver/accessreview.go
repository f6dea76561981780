package apiserver

import (
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func (s *Server) subjectAccessReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.SubjectAccessReview)
	review.Status = s.answer(ctx, about(&review.Spec))
	return review, nil
}

func (s *Server) localSubjectAccessReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.LocalSubjectAccessReview)
	review.Status = s.answer(ctx, about(&review.Spec))
	return review, nil
}

func (s *Server) selfSubjectAccessReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authorizationv1.SelfSubjectAccessReview)
	q := &question{request.UserFrom(ctx), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes}
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
