package registry

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"knarr/controlplane/apiserver/expressions"
)

// plainCompiler compiles expressions without variables. It waits for the first.
var plainCompiler = sync.OnceValue(expressions.NewPlainCompiler)

// stored are the expressions that an object held before: they are compiled as
// what was accepted once, even by an older version.
type stored map[string]bool

func (s stored) kind(expression string) environment.Type {
	if s[expression] {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

func conditionsStored(list []admissionv1.MatchCondition) stored {
	s := stored{}
	for _, c := range list {
		s[c.Expression] = true
	}
	return s
}

// validateExpression compiles one expression.
func validateExpression(c plugincel.Compiler, e plugincel.ExpressionAccessor, declared plugincel.OptionalVariableDeclarations, s stored, at *field.Path) field.ErrorList {
	result := c.CompileCELExpression(e, declared, s.kind(e.GetExpression()))
	if result.Error == nil {
		return nil
	}
	return field.ErrorList{expressionFault(result.Error, e.GetExpression(), at)}
}

func expressionFault(err *cel.Error, expression string, at *field.Path) *field.Error {
	switch err.Type {
	case cel.ErrorTypeRequired:
		return field.Required(at, err.Detail)
	case cel.ErrorTypeInvalid:
		return field.Invalid(at, expression, err.Detail)
	}
	return field.InternalError(at, err)
}

func validateMatchConditions(list []admissionv1.MatchCondition, params bool, s stored, at *field.Path) field.ErrorList {
	const most = 64
	f := &faults{}
	if len(list) > most {
		f.list = append(f.list, field.TooMany(at, len(list), most))
	}
	for i, m := range list {
		at := at.Index(i)
		if text := strings.TrimSpace(m.Expression); text == "" {
			f.required(at.Child("expression"), "")
		} else {
			f.add(validateExpression(plainCompiler(), &expressions.Condition{Expression: text},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, s, at.Child("expression")))
		}
		if m.Name == "" {
			f.required(at.Child("name"), "")
			continue
		}
		f.add(qualifiedName(m.Name, at.Child("name")))
		if slices.ContainsFunc(list[:i], func(o admissionv1.MatchCondition) bool { return o.Name == m.Name }) {
			f.duplicate(at.Child("name"), m.Name)
		}
	}
	return f.list
}

// celReserved cannot be names of variables.
var celReserved = []string{
	"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
	"loop", "package", "namespace", "return", "var", "void", "while",
}

func isCELName(name string) bool {
	for i, r := range name {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && !slices.Contains(celReserved, name)
}

// validateVariables compiles variables, which c then knows.
func validateVariables(c *plugincel.CompositedCompiler, list []admissionv1.Variable, params bool, s stored, at *field.Path) field.ErrorList {
	f := &faults{}
	for i, v := range list {
		at := at.Index(i)
		if strings.TrimSpace(v.Name) == "" {
			f.required(at.Child("name"), "name is not specified")
		} else if !isCELName(v.Name) {
			f.invalid(at.Child("name"), v.Name, "must be a valid CEL identifier")
		}
		if strings.TrimSpace(v.Expression) == "" {
			f.required(at.Child("expression"), "expression is not specified")
			continue
		}
		result := c.CompileAndStoreVariable(&expressions.Variable{Name: v.Name, Expression: v.Expression},
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, s.kind(v.Expression))
		if result.Error != nil {
			f.list = append(f.list, expressionFault(result.Error, v.Expression, at.Child("expression")))
		}
	}
	return f.list
}

// policyCompiler is a compiler for one policy.
func policyCompiler(at *field.Path) (*plugincel.CompositedCompiler, field.ErrorList) {
	c, err := expressions.NewCompiler()
	if err != nil {
		return nil, field.ErrorList{field.InternalError(at, fmt.Errorf("make a CEL compiler: %w", err))}
	}
	return c, nil
}
