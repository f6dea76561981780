package registry

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var validatingAdmissionPolicyBindings = &Kind[*admissionv1.ValidatingAdmissionPolicyBinding]{
	GroupVersionKind: admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"),
	Plural:           "validatingadmissionpolicybindings",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,

	Default: func(b *admissionv1.ValidatingAdmissionPolicyBinding) { defaultMatchResources(b.Spec.MatchResources) },
	Prepare: generations(func(b, old *admissionv1.ValidatingAdmissionPolicyBinding) bool { return !same(b.Spec, old.Spec) }),
	Validate: func(_ context.Context, b, _ *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
		at := field.NewPath("spec")
		return append(bindingFrame(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, at),
			validateValidationActions(b.Spec.ValidationActions, at.Child("validationActions"))...)
	},
	Warn: func(_ context.Context, b, _ *admissionv1.ValidatingAdmissionPolicyBinding) []string {
		return staticSuffix(b.Name)
	},
	Columns: bindingPolicyColumns(func(b *admissionv1.ValidatingAdmissionPolicyBinding) (string, *admissionv1.ParamRef) {
		return b.Spec.PolicyName, b.Spec.ParamRef
	}),
}

func bindingPolicyColumns[T Object](of func(T) (policy string, param *admissionv1.ParamRef)) []Column[T] {
	return []Column[T]{
		nameColumn[T](),
		column("PolicyName", "string", "PolicyName indicates the policy definition which the policy binding binded to", 0,
			func(o T) any { policy, _ := of(o); return policy }),
		column("ParamRef", "string", "ParamRef indicates the param resource which sets the configuration param", 0, func(o T) any {
			_, param := of(o)
			switch {
			case param == nil:
			case param.Name != "":
				return orElse(param.Namespace, "*") + "/" + param.Name
			case param.Selector != nil:
				return param.Selector.String()
			}
			return "<unset>"
		}),
		ageColumn[T](),
	}
}
