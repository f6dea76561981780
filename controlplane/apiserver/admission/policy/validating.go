package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/watchcache"
)

type (
	validatingPolicy  = admissionv1.ValidatingAdmissionPolicy
	validatingBinding = admissionv1.ValidatingAdmissionPolicyBinding
)

// Validating holds writes to ValidatingAdmissionPolicies.
type Validating struct {
	hooks *hooks[*validatingPolicy, *validatingBinding, *checks]
	cache *watchcache.Cache
	authz authorizer.Authorizer
}

// NewValidating makes the plugin; it starts nothing.
func NewValidating(c Config) *Validating {
	return &Validating{cache: c.Cache, authz: match.Authorizer(c.Authorizer), hooks: &hooks[*validatingPolicy, *validatingBinding, *checks]{
		policies:    c.Cache.Resource(admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")),
		bindings:    c.Cache.Resource(admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings")),
		constraints: func(p *validatingPolicy) *admissionv1.MatchResources { return p.Spec.MatchConstraints },
		spec: func(b *validatingBinding) (string, *admissionv1.ParamRef, *admissionv1.MatchResources) {
			return b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources
		},
		compile: compileChecks,
	}}
}

func (v *Validating) Name() string { return "ValidatingAdmissionPolicy" }

// A denial is a finding that refuses the write.
type denial struct {
	finding
	policy, binding string
}

func (d denial) String() string {
	if d.binding == "" {
		return fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", d.policy, d.message)
	}
	return fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", d.policy, d.binding, d.message)
}

// Validate holds the write to every policy that concerns it.
func (v *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	all := v.hooks.all()
	if len(all) == 0 || match.Exempt(a) {
		return nil
	}
	r := match.NewRequest(a, v.cache)
	var denials []denial
	for _, h := range all {
		found, err := v.apply(ctx, r, h)
		if err != nil {
			return err
		}
		denials = append(denials, found...)
	}
	if len(denials) == 0 {
		return nil
	}
	return refused(a, denials[0])
}

// refused is the answer: the first denial's.
func refused(a *admission.Attributes, d denial) error {
	text := d.String()
	err := apierrors.NewForbidden(a.Resource.GroupResource(), a.DisplayName(), errors.New(text))
	switch err.ErrStatus.Reason = d.reason; d.reason {
	case metav1.StatusReasonForbidden:
	case metav1.StatusReasonUnauthorized:
		err.ErrStatus.Code = http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		err.ErrStatus.Code = http.StatusRequestEntityTooLarge
	default:
		err.ErrStatus.Code = http.StatusUnprocessableEntity
		if d.reason == "" {
			err.ErrStatus.Reason = metav1.StatusReasonInvalid
		}
	}
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: text})
	return err
}

// apply runs one policy with each of its bindings.
func (v *Validating) apply(ctx context.Context, r *match.Request, h *hook[*validatingPolicy, *validatingBinding, *checks]) (denials []denial, err error) {
	p := h.policy
	misconfigured := func(binding, what string, err error) {
		if p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Ignore {
			denials = append(denials, denial{finding{message: fmt.Sprintf("failed to configure %s: %v", what, err)}, p.Name, binding})
		}
	}
	t, ok, err := h.criteria.Match(ctx, r)
	if err != nil {
		misconfigured("", "policy", err)
		return denials, nil
	}
	if !ok {
		return nil, nil
	}
	if err := unknownKind(r, p.Spec.ParamKind); err != nil {
		misconfigured("", "policy", err)
		return denials, nil
	}
	var view *upstream.VersionedAttributes
	notes := map[string][]string{}
	for _, b := range h.bindings {
		_, ok, err := b.criteria.Match(ctx, r)
		if err != nil {
			misconfigured(b.object.Name, "binding", err)
			continue
		}
		if !ok {
			continue
		}
		with, err := params(ctx, r, p.Spec.ParamKind, b.param)
		if err != nil {
			misconfigured(b.object.Name, "binding", err)
			continue
		}
		ns, err := r.NamespaceOf(ctx)
		if err != nil {
			return nil, err
		}
		if view == nil && len(with) > 0 {
			if view, err = r.View(t); err != nil {
				return nil, err
			}
		}
		for _, param := range with {
			found, noted := h.compiled().run(ctx, t, view, param, ns, v.authz)
			for _, f := range found {
				if v.act(ctx, r, p.Name, b.object, f) {
					denials = append(denials, denial{f, p.Name, b.object.Name})
				}
			}
			for _, n := range noted {
				if n.err != "" {
					denials = append(denials, denial{finding{message: n.err}, p.Name, b.object.Name})
				} else if !slices.Contains(notes[n.key], n.value) {
					notes[n.key] = append(notes[n.key], n.value[:min(len(n.value), maxNote)])
				}
			}
		}
	}
	for key, values := range notes {
		r.Annotate(ctx, p.Name+"/"+key, strings.Join(values, ", "))
	}
	return denials, nil
}

// maxNote bounds an audit annotation.
const maxNote = 10 * 1024

// act does what a binding wants done about a finding; true refuses the write.
func (v *Validating) act(ctx context.Context, r *match.Request, policy string, b *validatingBinding, f finding) (deny bool) {
	for _, action := range b.Spec.ValidationActions {
		switch action {
		case admissionv1.Deny:
			deny = true
		case admissionv1.Warn:
			r.Warn(ctx, fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", policy, b.Name, f.message))
		case admissionv1.Audit:
			data, err := json.Marshal([]any{struct {
				Message           string                         `json:"message"`
				Policy            string                         `json:"policy"`
				Binding           string                         `json:"binding"`
				ExpressionIndex   int                            `json:"expressionIndex"`
				ValidationActions []admissionv1.ValidationAction `json:"validationActions"`
			}{f.message, policy, b.Name, f.index, b.Spec.ValidationActions}})
			if err == nil {
				r.Annotate(ctx, "validation.policy.admission.k8s.io/validation_failure", string(data))
			}
		}
	}
	return deny
}
