package expressions

import (
	"context"

	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
)

// A Matcher is the match conditions of one webhook or policy.
type Matcher struct {
	conditions plugincel.ConditionEvaluator
	ignore     bool
}

// NewMatcher compiles conditions. failurePolicy decides on those that cannot
// be evaluated.
func NewMatcher(c plugincel.ConditionCompiler, conditions []admissionregistrationv1.MatchCondition, failurePolicy *admissionregistrationv1.FailurePolicyType, params bool) *Matcher {
	if len(conditions) == 0 {
		return nil
	}
	all := make([]plugincel.ExpressionAccessor, len(conditions))
	for i, m := range conditions {
		all[i] = &Condition{Expression: m.Expression, Name: m.Name}
	}
	return &Matcher{
		conditions: c.CompileCondition(all, plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, environment.StoredExpressions),
		ignore:     failurePolicy != nil && *failurePolicy == admissionregistrationv1.Ignore,
	}
}

// Matches reports whether every condition holds. One that is false decides; an
// error does only when no other is false.
func (m *Matcher) Matches(ctx context.Context, a *admission.VersionedAttributes, resource metav1.GroupVersionResource, param runtime.Object, authz authorizer.Authorizer) (bool, error) {
	if m == nil {
		return true, nil
	}
	request := plugincel.CreateAdmissionRequest(a.Attributes, resource, metav1.GroupVersionKind(a.VersionedKind))
	results, _, err := m.conditions.ForInput(ctx, a, request, plugincel.OptionalVariableBindings{VersionedParams: param, Authorizer: authz}, nil, celconfig.RuntimeCELCostBudgetMatchConditions)
	if err != nil {
		return false, m.unless(err)
	}
	var errs []error
	for _, r := range results {
		if r.Error != nil {
			errs = append(errs, r.Error)
		} else if r.EvalResult == types.False {
			return false, nil
		}
	}
	if len(errs) > 0 {
		return false, m.unless(utilerrors.NewAggregate(errs))
	}
	return true, nil
}

// unless drops the error when failures are ignored: then nothing matches.
func (m *Matcher) unless(err error) error {
	if m.ignore {
		return nil
	}
	return err
}
