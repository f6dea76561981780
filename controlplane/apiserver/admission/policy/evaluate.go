package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/expressions"
)

// checks are a validating policy's expressions, compiled.
type checks struct {
	err         error
	ignore      bool // errors do not refuse
	matcher     *expressions.Matcher
	validations plugincel.ConditionEvaluator
	messages    plugincel.ConditionEvaluator
	annotations plugincel.ConditionEvaluator
}

func compileChecks(p *admissionv1.ValidatingAdmissionPolicy) *checks {
	s := &p.Spec
	c := &checks{ignore: s.FailurePolicy != nil && *s.FailurePolicy == admissionv1.Ignore}
	compiler, err := expressions.NewCompiler()
	if err != nil {
		c.err = err
		return c
	}
	params := s.ParamKind != nil
	full := plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}
	compiler.CompileAndStoreVariables(variables(s.Variables), full, environment.StoredExpressions)
	c.matcher = expressions.NewMatcher(compiler, s.MatchConditions, s.FailurePolicy, params)
	conditions := make([]plugincel.ExpressionAccessor, len(s.Validations))
	messages := make([]plugincel.ExpressionAccessor, len(s.Validations)) // nil where there is none
	for i, v := range s.Validations {
		conditions[i] = &expressions.Condition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
		if v.MessageExpression != "" {
			messages[i] = &expressions.Message{Expression: v.MessageExpression}
		}
	}
	annotations := make([]plugincel.ExpressionAccessor, len(s.AuditAnnotations))
	for i, a := range s.AuditAnnotations {
		annotations[i] = &expressions.Annotation{Key: a.Key, Expression: a.ValueExpression}
	}
	c.validations = compiler.CompileCondition(conditions, full, environment.StoredExpressions)
	c.annotations = compiler.CompileCondition(annotations, full, environment.StoredExpressions)
	c.messages = compiler.CompileCondition(messages, plugincel.OptionalVariableDeclarations{HasParams: params}, environment.StoredExpressions)
	return c
}

// A finding is a validation that does not hold.
type finding struct {
	index   int
	message string
	reason  metav1.StatusReason
}

// A note is an audit annotation, or the error that took its place.
type note struct {
	key, value string
	err        string
}

// run evaluates all expressions on one object with one parameter.
func (c *checks) run(ctx context.Context, t match.Target, view *upstream.VersionedAttributes, param runtime.Object, ns *corev1.Namespace, authz authorizer.Authorizer) ([]finding, []note) {
	failed := func(err error) []finding {
		if c.ignore {
			return nil
		}
		return []finding{{message: err.Error()}}
	}
	if c.err != nil {
		return failed(c.err), nil
	}
	if ok, err := c.matcher.Matches(ctx, view, metav1.GroupVersionResource(t.Resource), param, authz); err != nil {
		return failed(err), nil
	} else if !ok {
		return nil, nil
	}
	request := plugincel.CreateAdmissionRequest(view.Attributes, metav1.GroupVersionResource(t.Resource), metav1.GroupVersionKind(view.VersionedKind))
	with := plugincel.OptionalVariableBindings{VersionedParams: param, Authorizer: authz}
	ns = plugincel.CreateNamespaceObject(ns)
	results, left, err := c.validations.ForInput(ctx, view, request, with, ns, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return failed(err), nil
	}
	messages, _, messageErr := c.messages.ForInput(ctx, view, request, plugincel.OptionalVariableBindings{VersionedParams: param}, ns, left)
	var found []finding
	for i, result := range results {
		var message *plugincel.EvaluationResult
		if i < len(messages) {
			message = &messages[i]
		}
		condition := result.ExpressionAccessor.(*expressions.Condition)
		err := result.Error
		if err == nil && (errors.Is(messageErr, apiservercel.ErrInternal) || errors.Is(messageErr, apiservercel.ErrOutOfBudget)) {
			err = fmt.Errorf("failed messageExpression: %w", messageErr)
		}
		switch {
		case err != nil:
			for _, f := range failed(err) {
				f.index = i
				found = append(found, f)
			}
		case result.EvalResult != types.True:
			f := finding{i, messageOf(condition, message), metav1.StatusReasonInvalid}
			if condition.Reason != nil {
				f.reason = *condition.Reason
			}
			found = append(found, f)
		}
	}
	noted, _, err := c.annotations.ForInput(ctx, view, request, plugincel.OptionalVariableBindings{VersionedParams: param, Authorizer: authz}, ns, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return failed(err), nil
	}
	return found, c.notes(noted)
}

// messageOf is what a refusal says: the message expression's text, the
// message, or the expression itself.
func messageOf(c *expressions.Condition, result *plugincel.EvaluationResult) string {
	if result != nil && result.Error == nil && result.EvalResult != nil {
		if text, ok := result.EvalResult.Value().(string); ok {
			text = strings.TrimSpace(text)
			if text != "" && len(text) <= celconfig.MaxEvaluatedMessageExpressionSizeBytes && !strings.Contains(text, "\n") {
				return text
			}
		}
	}
	if text := strings.TrimSpace(c.Message); text != "" {
		return text
	}
	return "failed expression: " + strings.TrimSpace(c.Expression)
}

func (c *checks) notes(results []plugincel.EvaluationResult) (out []note) {
	for _, r := range results {
		a, ok := r.ExpressionAccessor.(*expressions.Annotation)
		if !ok {
			continue
		}
		switch {
		case r.Error != nil:
			if !c.ignore {
				out = append(out, note{key: a.Key, err: r.Error.Error()})
			}
		case r.EvalResult.Type() == types.StringType:
			if value := strings.TrimSpace(r.EvalResult.Value().(string)); value != "" {
				out = append(out, note{key: a.Key, value: value})
			}
		case r.EvalResult.Type() != types.NullType:
			out = append(out, note{key: a.Key, err: fmt.Sprintf("valueExpression '%v' resulted in unsupported return type: %v. "+
				"Return type must be either string or null.", a.Expression, r.EvalResult.Type())})
		}
	}
	return out
}
