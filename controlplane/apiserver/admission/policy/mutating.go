package policy

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/expressions"
	"knarr/controlplane/apiserver/watchcache"
)

type (
	mutatingPolicy  = admissionv1.MutatingAdmissionPolicy
	mutatingBinding = admissionv1.MutatingAdmissionPolicyBinding
	mutatingHook    = hook[*mutatingPolicy, *mutatingBinding, *mutations]
)

// Mutating changes writes as MutatingAdmissionPolicies say.
type Mutating struct {
	hooks *hooks[*mutatingPolicy, *mutatingBinding, *mutations]
	cache *watchcache.Cache
	authz authorizer.Authorizer
}

// NewMutating makes the plugin; it starts nothing.
func NewMutating(c Config) *Mutating {
	return &Mutating{cache: c.Cache, authz: match.Authorizer(c.Authorizer), hooks: &hooks[*mutatingPolicy, *mutatingBinding, *mutations]{
		policies:    c.Cache.Resource(admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies")),
		bindings:    c.Cache.Resource(admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings")),
		constraints: func(p *mutatingPolicy) *admissionv1.MatchResources { return p.Spec.MatchConstraints },
		spec: func(b *mutatingBinding) (string, *admissionv1.ParamRef, *admissionv1.MatchResources) {
			return b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources
		},
		compile: compileMutations,
	}}
}

const mutatingName = "MutatingAdmissionPolicy"

func (m *Mutating) Name() string { return mutatingName }

// mutations are a mutating policy's expressions, compiled.
type mutations struct {
	err      error
	compiler *plugincel.CompositedCompiler
	matcher  *expressions.Matcher
	patches  []patch.Patcher
}

func compileMutations(p *mutatingPolicy) *mutations {
	s := &p.Spec
	m := &mutations{}
	if m.compiler, m.err = expressions.NewCompiler(); m.err != nil {
		return m
	}
	declared := plugincel.OptionalVariableDeclarations{HasParams: s.ParamKind != nil, HasAuthorizer: true}
	m.compiler.CompileAndStoreVariables(variables(s.Variables), declared, environment.StoredExpressions)
	m.matcher = expressions.NewMatcher(m.compiler, s.MatchConditions, s.FailurePolicy, declared.HasParams)
	declared.HasPatchTypes = true
	for _, one := range s.Mutations {
		switch {
		case one.PatchType == admissionv1.PatchTypeJSONPatch && one.JSONPatch != nil:
			e := m.compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: one.JSONPatch.Expression}, declared, environment.StoredExpressions)
			m.patches = append(m.patches, patch.NewJSONPatcher(e))
		case one.PatchType == admissionv1.PatchTypeApplyConfiguration && one.ApplyConfiguration != nil:
			e := m.compiler.CompileMutatingEvaluator(&patch.ApplyConfigurationCondition{Expression: one.ApplyConfiguration.Expression}, declared, environment.StoredExpressions)
			m.patches = append(m.patches, patch.NewApplyConfigurationPatcher(e))
		}
	}
	return m
}

// An invocation is a policy to be applied with one binding and parameter.
type invocation struct {
	hook    *mutatingHook
	binding string
	target  match.Target
	param   runtime.Object
}

func (i *invocation) key() string {
	key := i.hook.policy.Name + "\n" + i.binding
	if o, ok := i.param.(metav1.Object); ok {
		key += "\n" + o.GetNamespace() + "/" + o.GetName()
	}
	return key
}

// A failure is a policy that could not be applied.
type failure struct {
	policy, binding string
	err             error
	reason          metav1.StatusReason
}

func (f failure) String() string {
	if f.binding == "" {
		return fmt.Sprintf("policy %q denied request: %s", f.policy, f.err)
	}
	return fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", f.policy, f.binding, f.err)
}

// Admit applies every policy that concerns the write.
func (m *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	all := m.hooks.all()
	if len(all) == 0 || a.Operation == admission.Delete || match.Exempt(a) {
		return nil
	}
	r := match.NewRequest(a, m.cache)
	var todo []invocation
	var failures []failure
	for _, h := range all {
		some, failed := invocations(ctx, r, h)
		todo, failures = append(todo, some...), append(failures, failed...)
	}
	if len(todo) > 0 {
		failed, err := m.invoke(ctx, r, todo)
		if err != nil {
			return err
		}
		failures = append(failures, failed...)
	}
	if len(failures) == 0 {
		return nil
	}
	err := apierrors.NewForbidden(a.Resource.GroupResource(), a.DisplayName(), errors.New("admission request denied by policy"))
	err.ErrStatus.Message = failures[0].String()
	if failures[0].reason != "" {
		err.ErrStatus.Reason = failures[0].reason
	}
	for _, f := range failures {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: f.String()})
	}
	return err
}

// counts says that failures of a policy refuse the write.
func counts(p *mutatingPolicy) bool {
	return p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Ignore
}

// invocations are the ways in which one policy is to be applied.
func invocations(ctx context.Context, r *match.Request, h *mutatingHook) (todo []invocation, failures []failure) {
	p := h.policy
	misconfigured := func(binding, what string, err error) {
		if counts(p) {
			failures = append(failures, failure{policy: p.Name, binding: binding, err: fmt.Errorf("failed to configure %s: %w", what, err)})
		}
	}
	t, ok, err := h.criteria.Match(ctx, r)
	if err == nil && ok {
		err = unknownKind(r, p.Spec.ParamKind)
	}
	if err != nil {
		misconfigured("", "policy", err)
	}
	if err != nil || !ok {
		return nil, failures
	}
	for _, b := range h.bindings {
		_, ok, err := b.criteria.Match(ctx, r)
		if err == nil && !ok {
			continue
		}
		var with []runtime.Object
		if err == nil {
			with, err = params(ctx, r, p.Spec.ParamKind, b.param)
		}
		if err != nil {
			misconfigured(b.object.Name, "binding", err)
			continue
		}
		for _, param := range with {
			todo = append(todo, invocation{h, b.object.Name, t, param})
		}
	}
	return todo, failures
}

// invoke applies policies one after the other; each sees what those before it
// have made.
func (m *Mutating) invoke(ctx context.Context, r *match.Request, todo []invocation) (failures []failure, err error) {
	state := match.MemoryOf(r.Attributes, mutatingName)
	ns, err := r.NamespaceOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range todo {
		p, c := i.hook.policy, i.hook.compiled()
		if c.err != nil {
			return nil, apierrors.NewInternalError(c.err)
		}
		view, err := r.View(i.target)
		if err != nil {
			return nil, err
		}
		ok, err := c.matcher.Matches(ctx, view, metav1.GroupVersionResource(i.target.Resource), i.param, m.authz)
		if err != nil && counts(p) {
			failures = append(failures, failure{p.Name, i.binding, err, metav1.StatusReasonInvalid})
		}
		if err != nil || !ok || state.Passes(r.Attributes, i.key()) {
			continue
		}
		before := view.VersionedObject
		for _, one := range c.patches {
			if view.VersionedObject == nil {
				break
			}
			if err := m.patch(c.compiler.CreateContext(ctx), one, r, i, view, ns); err != nil {
				var status *apierrors.StatusError
				if errors.As(err, &status) {
					return nil, status
				}
				if counts(p) {
					failures = append(failures, failure{p.Name, i.binding, err, metav1.StatusReasonInvalid})
				}
			}
		}
		if view.VersionedObject != nil && !apiequality.Semantic.DeepEqual(before, view.VersionedObject) {
			state.Changed(r.Attributes)
			if err := r.Accept(i.target, view.VersionedObject); err != nil {
				return nil, err
			}
		}
		if p.Spec.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy {
			state.Invoked(i.key())
		}
	}
	state.End(r.Attributes)
	return failures, nil
}

// patch applies one mutation to the view.
func (m *Mutating) patch(ctx context.Context, one patch.Patcher, r *match.Request, i invocation, view *upstream.VersionedAttributes, ns *corev1.Namespace) error {
	types, err := r.Served.TypeConverter(r.Resource)
	if err != nil {
		return err
	}
	made, err := one.Patch(ctx, patch.Request{
		MatchedResource: i.target.Resource, VersionedAttributes: view, ObjectInterfaces: interfaces{},
		OptionalVariables: plugincel.OptionalVariableBindings{VersionedParams: i.param, Authorizer: m.authz},
		Namespace:         ns, TypeConverter: types,
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return err
	}
	if u, ok := made.(*unstructured.Unstructured); ok {
		if _, custom := view.VersionedObject.(*unstructured.Unstructured); !custom {
			if made, err = r.Served.New(r.Resource, i.target.Kind); err != nil {
				return err
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, made); err != nil {
				return err
			}
		}
	}
	made.GetObjectKind().SetGroupVersionKind(i.target.Kind)
	r.Served.Default(r.Resource, i.target.Kind, made)
	view.VersionedObject = made
	return nil
}

// interfaces is what upstream's patchers know of kinds.
type interfaces struct{ upstream.ObjectInterfaces }

func (interfaces) GetObjectCreater() runtime.ObjectCreater { return scheme.Scheme }
func (interfaces) GetObjectTyper() runtime.ObjectTyper     { return scheme.Scheme }
