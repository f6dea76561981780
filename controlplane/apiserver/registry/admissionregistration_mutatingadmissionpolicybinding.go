package registry

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var mutatingAdmissionPolicyBindings = &Kind[*admissionv1.MutatingAdmissionPolicyBinding]{
	GroupVersionKind: admissionv1.SchemeGroupVersion.WithKind("MutatingAdmissionPolicyBinding"),
	Plural:           "mutatingadmissionpolicybindings",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,
	StoredIn:         "v1beta1",

	Default: func(b *admissionv1.MutatingAdmissionPolicyBinding) { defaultMatchResources(b.Spec.MatchResources) },
	Prepare: generations(func(b, old *admissionv1.MutatingAdmissionPolicyBinding) bool { return !same(b.Spec, old.Spec) }),
	Validate: func(_ context.Context, b, _ *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
		at := field.NewPath("spec")
		errs := bindingFrame(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, at)
		if b.Spec.MatchResources != nil {
			errs = append(errs, onlyMutatingOperations(b.Spec.MatchResources, at.Child("matchResources"))...)
		}
		return errs
	},
	Warn: func(_ context.Context, b, _ *admissionv1.MutatingAdmissionPolicyBinding) []string {
		return staticSuffix(b.Name)
	},
	Columns: bindingPolicyColumns(func(b *admissionv1.MutatingAdmissionPolicyBinding) (string, *admissionv1.ParamRef) {
		return b.Spec.PolicyName, b.Spec.ParamRef
	}),
}
