package validatingadmissionpolicystatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

// mostKinds bounds the kinds that one policy's expressions are checked with.
const mostKinds = 10

// A resolver knows the kinds of resources and their types. A nil type is one
// that nothing is known of.
type resolver interface {
	kinds(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error)
	typeOf(kind schema.GroupVersionKind) (*apiservercel.DeclType, error)
}

// check says which expressions of a policy do not fit the kinds it applies to.
func check(from resolver, p *admissionv1.ValidatingAdmissionPolicy) ([]admissionv1.ExpressionWarning, error) {
	kinds, err := kindsOf(from, p)
	if err != nil {
		return nil, err
	}
	var params *apiservercel.DeclType
	if k := p.Spec.ParamKind; k != nil {
		if params, err = from.typeOf(schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)); err != nil {
			return nil, err
		}
	}
	type typed struct {
		kind schema.GroupVersionKind
		c    *compiler
	}
	var compilers []typed
	for _, kind := range kinds {
		object, err := from.typeOf(kind)
		if err != nil {
			return nil, err
		}
		if object == nil {
			continue
		}
		c, err := newCompiler(p, object, params)
		if err != nil {
			return nil, fmt.Errorf("prepare to check %s: %w", kind, err)
		}
		compilers = append(compilers, typed{kind, c})
	}
	var out []admissionv1.ExpressionWarning
	one := func(at *field.Path, expression string) {
		var texts []string
		for _, t := range compilers {
			if fault := t.c.fault(expression); fault != "" {
				texts = append(texts, fmt.Sprintf("%v: %s\n", t.kind, fault))
			}
		}
		if len(texts) > 0 {
			out = append(out, admissionv1.ExpressionWarning{FieldRef: at.String(), Warning: strings.Join(texts, "\n")})
		}
	}
	for i, v := range p.Spec.Validations {
		at := field.NewPath("spec", "validations").Index(i)
		one(at.Child("expression"), v.Expression)
		if v.MessageExpression != "" {
			one(at.Child("messageExpression"), v.MessageExpression)
		}
	}
	return out, nil
}

// kindsOf are the kinds that a policy names, sorted; wildcards name none.
func kindsOf(from resolver, p *admissionv1.ValidatingAdmissionPolicy) ([]schema.GroupVersionKind, error) {
	if p.Spec.MatchConstraints == nil {
		return nil, nil
	}
	wild := func(s string) bool { return strings.Contains(s, "*") }
	seen := map[schema.GroupVersionKind]bool{}
	for _, rule := range p.Spec.MatchConstraints.ResourceRules {
		if slices.ContainsFunc(rule.APIGroups, wild) || slices.ContainsFunc(rule.APIVersions, wild) {
			continue
		}
		for _, group := range rule.APIGroups {
			for _, version := range rule.APIVersions {
				for _, resource := range rule.Resources {
					if strings.ContainsAny(resource, "*/") || len(seen) >= mostKinds {
						continue
					}
					kinds, err := from.kinds(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
					if err != nil {
						return nil, err
					}
					for _, k := range kinds {
						seen[k] = true
					}
				}
			}
		}
	}
	var out []schema.GroupVersionKind
	for k := range seen {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionKind) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version), strings.Compare(a.Kind, b.Kind))
	})
	return out, nil
}

// A compiler checks expressions on objects of one type.
type compiler struct{ composed *plugincel.CompositedCompiler }

// newCompiler knows the policy's variables.
func newCompiler(p *admissionv1.ValidatingAdmissionPolicy, object, params *apiservercel.DeclType) (*compiler, error) {
	types := []*apiservercel.DeclType{plugincel.BuildNamespaceType(), plugincel.BuildRequestType(), object}
	vars := []cel.EnvOption{
		cel.Variable(plugincel.NamespaceVarName, types[0].CelType()), cel.Variable(plugincel.RequestVarName, types[1].CelType()),
		cel.Variable(plugincel.ObjectVarName, object.CelType()), cel.Variable(plugincel.OldObjectVarName, object.CelType()),
		cel.Variable("authorizer", library.AuthorizerType),
	}
	if p.Spec.ParamKind != nil {
		t := cel.DynType
		if params != nil {
			t, types = params.CelType(), append(types, params)
		}
		vars = append(vars, cel.Variable(plugincel.ParamsVarName, t))
	}
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: vars, DeclTypes: types,
	})
	if err != nil {
		return nil, err
	}
	composed, err := plugincel.NewCompositedCompilerForTypeChecking(env)
	if err != nil {
		return nil, err
	}
	c := &compiler{composed}
	composed.Compiler = c
	for _, v := range p.Spec.Variables {
		composed.CompileAndStoreVariable(variable{v}, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	}
	return c, nil
}

// fault says what is wrong with an expression, or nothing.
func (c *compiler) fault(expression string) string {
	err := c.CompileCELExpression(text(expression), plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions).Error
	switch {
	case err == nil:
		return ""
	case err.Type == apiservercel.ErrorTypeInvalid:
		return err.Error()
	}
	return "type checking error: " + err.Error()
}

// CompileCELExpression finds out the type of an expression; it makes nothing
// that could be run.
func (c *compiler) CompileCELExpression(e plugincel.ExpressionAccessor, _ plugincel.OptionalVariableDeclarations, mode environment.Type) plugincel.CompilationResult {
	failed := func(kind apiservercel.ErrorType, detail string) plugincel.CompilationResult {
		return plugincel.CompilationResult{Error: &apiservercel.Error{Type: kind, Detail: detail}, ExpressionAccessor: e}
	}
	env, err := c.composed.Env(mode)
	if err != nil {
		return failed(apiservercel.ErrorTypeInternal, fmt.Sprintf("fail to build env: %v", err))
	}
	ast, issues := env.Compile(e.GetExpression())
	if issues != nil {
		return failed(apiservercel.ErrorTypeInvalid, issues.String())
	}
	return plugincel.CompilationResult{OutputType: ast.OutputType()}
}

type text string

func (t text) GetExpression() string  { return string(t) }
func (text) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType} }

type variable struct{ admissionv1.Variable }

func (v variable) GetName() string        { return v.Name }
func (v variable) GetExpression() string  { return v.Expression }
func (variable) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType, cel.DynType} }
