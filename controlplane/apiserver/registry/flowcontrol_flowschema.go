package registry

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var flowSchemas = &Kind[*flowcontrolv1.FlowSchema]{
	GroupVersionKind: flowcontrolv1.SchemeGroupVersion.WithKind("FlowSchema"),
	Plural:           "flowschemas",
	Cluster:          true,

	Default: func(s *flowcontrolv1.FlowSchema) {
		if s.Spec.MatchingPrecedence == 0 {
			s.Spec.MatchingPrecedence = 1000
		}
	},
	Prepare: spec(
		func(s *flowcontrolv1.FlowSchema) { s.Status = flowcontrolv1.FlowSchemaStatus{} },
		func(s, old *flowcontrolv1.FlowSchema) { s.Status = old.Status },
		func(s, old *flowcontrolv1.FlowSchema) bool { return !same(s.Spec, old.Spec) }),
	Validate: validateFlowSchema,
	SortedBy: "MatchingPrecedence",
	Columns: []Column[*flowcontrolv1.FlowSchema]{
		nameColumn[*flowcontrolv1.FlowSchema](),
		column("PriorityLevel", "string", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"], 0,
			func(s *flowcontrolv1.FlowSchema) any { return s.Spec.PriorityLevelConfiguration.Name }),
		column("MatchingPrecedence", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"], 0,
			func(s *flowcontrolv1.FlowSchema) any { return int64(s.Spec.MatchingPrecedence) }),
		column("DistinguisherMethod", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"], 0,
			func(s *flowcontrolv1.FlowSchema) any {
				if s.Spec.DistinguisherMethod == nil {
					return "<none>"
				}
				return string(s.Spec.DistinguisherMethod.Type)
			}),
		ageColumn[*flowcontrolv1.FlowSchema](),
		column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration", 0,
			func(s *flowcontrolv1.FlowSchema) any {
				for _, c := range s.Status.Conditions {
					if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
						return string(c.Status)
					}
				}
				return "?"
			}),
	},
	Sub: []Subresource[*flowcontrolv1.FlowSchema]{
		statusOf(func(s, old *flowcontrolv1.FlowSchema) {
			s.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&s.ObjectMeta, &old.ObjectMeta)
		}, func(_ context.Context, s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
			return validateFlowSchemaStatus(&s.Status)
		}),
	},
}
