package registry

import (
	"cmp"
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var priorityLevelConfigurations = &Kind[*flowcontrolv1.PriorityLevelConfiguration]{
	GroupVersionKind: flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration"),
	Plural:           "prioritylevelconfigurations",
	RecheckName:      true,
	Cluster:          true,

	Default: defaultPriorityLevel,
	Prepare: spec(
		func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
		},
		func(l, old *flowcontrolv1.PriorityLevelConfiguration) { l.Status = old.Status },
		func(l, old *flowcontrolv1.PriorityLevelConfiguration) bool { return !same(l.Spec, old.Spec) }),
	Validate: validatePriorityLevel,
	Columns: []Column[*flowcontrolv1.PriorityLevelConfiguration]{
		nameColumn[*flowcontrolv1.PriorityLevelConfiguration](),
		column("Type", "string", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"], 0,
			func(l *flowcontrolv1.PriorityLevelConfiguration) any { return string(l.Spec.Type) }),
		column("NominalConcurrencyShares", "string", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"], 0,
			func(l *flowcontrolv1.PriorityLevelConfiguration) any {
				if l.Spec.Limited == nil {
					return "<none>"
				}
				return int64(deref(l.Spec.Limited.NominalConcurrencyShares, 0))
			}),
		queuingColumn("Queues", "queues", func(q *flowcontrolv1.QueuingConfiguration) int32 { return q.Queues }),
		queuingColumn("HandSize", "handSize", func(q *flowcontrolv1.QueuingConfiguration) int32 { return q.HandSize }),
		queuingColumn("QueueLengthLimit", "queueLengthLimit", func(q *flowcontrolv1.QueuingConfiguration) int32 { return q.QueueLengthLimit }),
		ageColumn[*flowcontrolv1.PriorityLevelConfiguration](),
	},
	Sub: []Subresource[*flowcontrolv1.PriorityLevelConfiguration]{
		statusOf(func(l, old *flowcontrolv1.PriorityLevelConfiguration) {
			l.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&l.ObjectMeta, &old.ObjectMeta)
		}, func(_ context.Context, l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
			return validatePriorityLevelStatus(&l.Status)
		}),
	},
}

func queuingColumn(name, doc string, cell func(*flowcontrolv1.QueuingConfiguration) int32) Column[*flowcontrolv1.PriorityLevelConfiguration] {
	return column(name, "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()[doc], 0,
		func(l *flowcontrolv1.PriorityLevelConfiguration) any {
			if l.Spec.Limited == nil || l.Spec.Limited.LimitResponse.Queuing == nil {
				return "<none>"
			}
			return int64(cell(l.Spec.Limited.LimitResponse.Queuing))
		})
}

func defaultPriorityLevel(l *flowcontrolv1.PriorityLevelConfiguration) {
	if e := l.Spec.Exempt; e != nil {
		fillPtr(&e.NominalConcurrencyShares, 0)
		fillPtr(&e.LendablePercent, 0)
	}
	if m := l.Spec.Limited; m != nil {
		fillPtr(&m.NominalConcurrencyShares, 30)
		fillPtr(&m.LendablePercent, 0)
		if q := m.LimitResponse.Queuing; q != nil {
			q.HandSize = cmp.Or(q.HandSize, 8)
			q.Queues = cmp.Or(q.Queues, 64)
			q.QueueLengthLimit = cmp.Or(q.QueueLengthLimit, 50)
		}
	}
}
