package registry

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var mutatingAdmissionPolicies = &Kind[*admissionv1.MutatingAdmissionPolicy]{
	GroupVersionKind: admissionv1.SchemeGroupVersion.WithKind("MutatingAdmissionPolicy"),
	Plural:           "mutatingadmissionpolicies",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,
	StoredIn:         "v1beta1",

	Default: func(p *admissionv1.MutatingAdmissionPolicy) {
		if p.Spec.FailurePolicy == nil {
			p.Spec.FailurePolicy = new(admissionv1.Fail)
		}
		defaultMatchResources(p.Spec.MatchConstraints)
	},
	Prepare: generations(func(p, old *admissionv1.MutatingAdmissionPolicy) bool { return !same(p.Spec, old.Spec) }),
	Validate: func(_ context.Context, p, old *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
		return validateMutatingPolicy(p, old)
	},
	Warn: func(_ context.Context, p, _ *admissionv1.MutatingAdmissionPolicy) []string {
		return staticSuffix(p.Name)
	},
	Columns: []Column[*admissionv1.MutatingAdmissionPolicy]{
		nameColumn[*admissionv1.MutatingAdmissionPolicy](),
		column("Mutations", "integer", "Mutation indicates the number of mutations rules defined in this configuration", 0,
			func(p *admissionv1.MutatingAdmissionPolicy) any { return int64(len(p.Spec.Mutations)) }),
		paramKindColumn(func(p *admissionv1.MutatingAdmissionPolicy) *admissionv1.ParamKind { return p.Spec.ParamKind }),
		ageColumn[*admissionv1.MutatingAdmissionPolicy](),
	},
}
