package registry

import policyv1 "k8s.io/api/policy/v1"

var podDisruptionBudgets = &Kind[*policyv1.PodDisruptionBudget]{
	GroupVersionKind: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
	Plural:           "poddisruptionbudgets",
	Metadata:         Bare,
	Short:            []string{"pdb"},
	Conditional:      true,

	Prepare: spec(
		func(b *policyv1.PodDisruptionBudget) { b.Status = policyv1.PodDisruptionBudgetStatus{} },
		func(b, old *policyv1.PodDisruptionBudget) { b.Status = old.Status },
		func(b, old *policyv1.PodDisruptionBudget) bool { return !same(b.Spec, old.Spec) }),
	Validate: validateDisruptionBudget,
	Columns: []Column[*policyv1.PodDisruptionBudget]{
		nameColumn[*policyv1.PodDisruptionBudget](),
		column("Min Available", "string", "The minimum number of pods that must be available.", 0, func(b *policyv1.PodDisruptionBudget) any {
			if b.Spec.MinAvailable == nil {
				return "N/A"
			}
			return b.Spec.MinAvailable.String()
		}),
		column("Max Unavailable", "string", "The maximum number of pods that may be unavailable.", 0, func(b *policyv1.PodDisruptionBudget) any {
			if b.Spec.MaxUnavailable == nil {
				return "N/A"
			}
			return b.Spec.MaxUnavailable.String()
		}),
		column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time.", 0,
			func(b *policyv1.PodDisruptionBudget) any { return int64(b.Status.DisruptionsAllowed) }),
		ageColumn[*policyv1.PodDisruptionBudget](),
	},
	Sub: []Subresource[*policyv1.PodDisruptionBudget]{
		statusOf(func(b, old *policyv1.PodDisruptionBudget) { b.Spec = old.Spec }, validateDisruptionBudgetStatus),
	},
}
