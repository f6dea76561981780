package registry

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"
)

var validatingAdmissionPolicies = &Kind[*admissionv1.ValidatingAdmissionPolicy]{
	GroupVersionKind: admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"),
	Plural:           "validatingadmissionpolicies",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,

	Default: func(p *admissionv1.ValidatingAdmissionPolicy) {
		if p.Spec.FailurePolicy == nil {
			p.Spec.FailurePolicy = new(admissionv1.Fail)
		}
		defaultMatchResources(p.Spec.MatchConstraints)
	},
	Prepare: spec(
		func(p *admissionv1.ValidatingAdmissionPolicy) {
			p.Status = admissionv1.ValidatingAdmissionPolicyStatus{}
		},
		func(p, old *admissionv1.ValidatingAdmissionPolicy) { p.Status = old.Status },
		func(p, old *admissionv1.ValidatingAdmissionPolicy) bool { return !same(p.Spec, old.Spec) }),
	Validate: func(_ context.Context, p, old *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
		return validateValidatingPolicy(p, old)
	},
	Warn: func(_ context.Context, p, _ *admissionv1.ValidatingAdmissionPolicy) []string {
		return staticSuffix(p.Name)
	},
	Columns: []Column[*admissionv1.ValidatingAdmissionPolicy]{
		nameColumn[*admissionv1.ValidatingAdmissionPolicy](),
		column("Validations", "integer", "Validations indicates the number of validation rules defined in this configuration", 0,
			func(p *admissionv1.ValidatingAdmissionPolicy) any { return int64(len(p.Spec.Validations)) }),
		paramKindColumn(func(p *admissionv1.ValidatingAdmissionPolicy) *admissionv1.ParamKind { return p.Spec.ParamKind }),
		ageColumn[*admissionv1.ValidatingAdmissionPolicy](),
	},
	Sub: []Subresource[*admissionv1.ValidatingAdmissionPolicy]{
		statusOf(func(p, old *admissionv1.ValidatingAdmissionPolicy) {
			p.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
		}, func(_ context.Context, p, _ *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
			return validatePolicyStatus(&p.Status)
		}),
	},
}

func paramKindColumn[T Object](kind func(T) *admissionv1.ParamKind) Column[T] {
	return column("ParamKind", "string", "ParamKind specifies the kind of resources used to parameterize this policy", 0, func(o T) any {
		if k := kind(o); k != nil {
			return k.APIVersion + "/" + k.Kind
		}
		return "<unset>"
	})
}

func validatePolicyStatus(s *admissionv1.ValidatingAdmissionPolicyStatus) field.ErrorList {
	f := &faults{}
	at := field.NewPath("status")
	if s.TypeChecking != nil {
		for i, w := range s.TypeChecking.ExpressionWarnings {
			at := at.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				f.required(at.Child("warning"), "")
			}
			ref := strings.TrimSpace(w.FieldRef)
			if ref == "" {
				f.required(at.Child("fieldRef"), "")
			} else if err := jsonpath.New("spec").Parse(fmt.Sprintf("{%s}", ref)); err != nil {
				f.invalid(at.Child("fieldRef"), ref, fmt.Sprintf("invalid JSONPath: %v", err))
			}
		}
	}
	f.add(metav1validation.ValidateConditions(s.Conditions, at.Child("conditions")))
	return f.list
}
