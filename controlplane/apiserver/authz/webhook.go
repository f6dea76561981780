package authz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"knarr/controlplane/apiserver/reviewer"
	"knarr/controlplane/apiserver/structured"
)

// webhook asks a server elsewhere, and remembers a bounded number of answers.
type webhook struct {
	client              *reviewer.Client
	version             string
	conditions          *authorizationcel.CELMatcher
	onError             authorizer.Decision
	allowedTTL, elseTTL time.Duration
	answers             *cache.LRUExpireCache
}

const (
	answersKept = 8192
	// cacheable bounds how much of what a stranger chose is remembered.
	cacheable = 10000
)

func newWebhook(c *apiserver.WebhookConfiguration) (*webhook, error) {
	w := &webhook{version: c.SubjectAccessReviewVersion, answers: cache.NewLRUExpireCache(answersKept)}
	gv := authorizationv1.SchemeGroupVersion
	switch w.version {
	case "v1":
	case "v1beta1":
		gv = authorizationv1beta1.SchemeGroupVersion
	default:
		return nil, fmt.Errorf("unsupported webhook authorizer version %q, supported versions are %q, %q", w.version, "v1", "v1beta1")
	}
	switch c.FailurePolicy {
	case apiserver.FailurePolicyNoOpinion:
		w.onError = authorizer.DecisionNoOpinion
	case apiserver.FailurePolicyDeny:
		w.onError = authorizer.DecisionDeny
	default:
		return nil, fmt.Errorf("unknown failurePolicy %q", c.FailurePolicy)
	}
	if c.CacheAuthorizedRequests {
		w.allowedTTL = c.AuthorizedTTL.Duration
	}
	if c.CacheUnauthorizedRequests {
		w.elseTTL = c.UnauthorizedTTL.Duration
	}
	var err error
	if w.client, err = reviewer.New(*c.ConnectionInfo.KubeConfigFile, gv, c.Timeout.Duration); err != nil {
		return nil, err
	}
	conditions, errs := validation.ValidateAndCompileMatchConditions(structured.Reviews(), c.MatchConditions)
	w.conditions = conditions
	return w, errs.ToAggregate()
}

var errBoth = errors.New("webhook subject access review returned both allow and deny response")

// Authorize asks, unless a condition says that the webhook has no say. What
// goes wrong is decided by the failure policy.
func (w *webhook) Authorize(ctx context.Context, a *Attributes) (authorizer.Decision, string, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: specOf(a)}
	if w.conditions != nil && len(w.conditions.CompilationResults) > 0 {
		switch match, err := w.conditions.Eval(ctx, review); {
		case err != nil:
			return w.onError, "", err
		case !match:
			return authorizer.DecisionNoOpinion, "", nil
		}
	}
	status, err := w.ask(ctx, a, review)
	switch {
	case err != nil:
		slog.ErrorContext(ctx, "authorization webhook", "err", err)
		return w.onError, "", err
	case status.Denied && status.Allowed:
		return authorizer.DecisionDeny, status.Reason, errBoth
	case status.Denied:
		return authorizer.DecisionDeny, status.Reason, nil
	case status.Allowed:
		return authorizer.DecisionAllow, status.Reason, nil
	}
	return authorizer.DecisionNoOpinion, status.Reason, nil
}

func (w *webhook) ask(ctx context.Context, a *Attributes, review *authorizationv1.SubjectAccessReview) (s authorizationv1.SubjectAccessReviewStatus, err error) {
	text, err := json.Marshal(review.Spec)
	if err != nil {
		return s, err
	}
	key := string(text)
	if s, ok := w.answers.Get(key); ok {
		return s.(authorizationv1.SubjectAccessReviewStatus), nil
	}
	if w.version == "v1beta1" {
		answer := &authorizationv1beta1.SubjectAccessReview{}
		err = w.client.Ask(ctx, &authorizationv1beta1.SubjectAccessReview{Spec: olderSpec(&review.Spec)}, answer)
		s = authorizationv1.SubjectAccessReviewStatus(answer.Status)
	} else {
		answer := &authorizationv1.SubjectAccessReview{}
		err = w.client.Ask(ctx, review, answer)
		s = answer.Status
	}
	if err != nil {
		return s, err
	}
	ttl := w.elseTTL
	if s.Allowed {
		ttl = w.allowedTTL
	}
	chosen := len(a.Namespace) + len(a.Verb) + len(a.Group) + len(a.Version) + len(a.Resource) + len(a.Subresource) + len(a.Name) + len(a.Path)
	if ttl > 0 && chosen < cacheable {
		w.answers.Add(key, s, ttl)
	}
	return s, nil
}

// Rules of a webhook are not listed.
func (*webhook) Rules(user.Info, string) Rules {
	return Rules{Incomplete: true, Err: errors.New("webhook authorizer does not support user rule resolution")}
}

// specOf is the question as a webhook gets it.
func specOf(a *Attributes) (s authorizationv1.SubjectAccessReviewSpec) {
	s.User, s.UID, s.Groups = a.User.GetName(), a.User.GetUID(), a.User.GetGroups()
	if extra := a.User.GetExtra(); extra != nil {
		s.Extra = make(map[string]authorizationv1.ExtraValue, len(extra))
		for k, v := range extra {
			s.Extra[k] = v
		}
	}
	if !a.IsResource {
		s.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.Path, Verb: a.Verb}
		return s
	}
	r := &authorizationv1.ResourceAttributes{
		Namespace: a.Namespace, Verb: a.Verb, Group: a.Group, Version: a.Version, Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
	}
	if reqs := fieldRequirements(a.FieldSelector); len(reqs) > 0 {
		r.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: reqs}
	}
	if reqs := labelRequirements(a.LabelSelector); len(reqs) > 0 {
		r.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: reqs}
	}
	s.ResourceAttributes = r
	return s
}

// fieldRequirements are those of a raw selector; one that cannot be read
// narrows nothing.
func fieldRequirements(raw string) (reqs []metav1.FieldSelectorRequirement) {
	if raw == "" {
		return nil
	}
	s, err := fields.ParseSelector(raw)
	if err != nil {
		return nil
	}
	for _, r := range s.Requirements() {
		op := metav1.FieldSelectorOpIn
		if r.Operator == selection.NotEquals {
			op = metav1.FieldSelectorOpNotIn
		}
		reqs = append(reqs, metav1.FieldSelectorRequirement{Key: r.Field, Operator: op, Values: []string{r.Value}})
	}
	return reqs
}

// labelOperators are those that a webhook knows.
var labelOperators = map[selection.Operator]metav1.LabelSelectorOperator{
	selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn, selection.In: metav1.LabelSelectorOpIn,
	selection.NotEquals: metav1.LabelSelectorOpNotIn, selection.NotIn: metav1.LabelSelectorOpNotIn,
	selection.Exists: metav1.LabelSelectorOpExists, selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist,
}

func labelRequirements(raw string) (reqs []metav1.LabelSelectorRequirement) {
	if raw == "" {
		return nil
	}
	s, err := labels.Parse(raw)
	if err != nil {
		return nil
	}
	all, _ := s.Requirements()
	for _, r := range all {
		if op, ok := labelOperators[r.Operator()]; ok {
			req := metav1.LabelSelectorRequirement{Key: r.Key(), Operator: op}
			if values := r.ValuesUnsorted(); len(values) > 0 {
				req.Values = values
			}
			reqs = append(reqs, req)
		}
	}
	return reqs
}

// olderSpec is s for webhooks that know v1beta1 only.
func olderSpec(s *authorizationv1.SubjectAccessReviewSpec) authorizationv1beta1.SubjectAccessReviewSpec {
	old := authorizationv1beta1.SubjectAccessReviewSpec{User: s.User, UID: s.UID, Groups: s.Groups}
	for k, v := range s.Extra {
		if old.Extra == nil {
			old.Extra = make(map[string]authorizationv1beta1.ExtraValue, len(s.Extra))
		}
		old.Extra[k] = authorizationv1beta1.ExtraValue(v)
	}
	if n := s.NonResourceAttributes; n != nil {
		old.NonResourceAttributes = &authorizationv1beta1.NonResourceAttributes{Path: n.Path, Verb: n.Verb}
	}
	if r := s.ResourceAttributes; r != nil {
		old.ResourceAttributes = &authorizationv1beta1.ResourceAttributes{
			Namespace: r.Namespace, Verb: r.Verb, Group: r.Group, Version: r.Version, Resource: r.Resource,
			Subresource: r.Subresource, Name: r.Name, FieldSelector: r.FieldSelector, LabelSelector: r.LabelSelector,
		}
	}
	return old
}
