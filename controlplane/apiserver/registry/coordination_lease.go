package registry

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
)

var leases = &Kind[*coordinationv1.Lease]{
	GroupVersionKind: coordinationv1.SchemeGroupVersion.WithKind("Lease"),
	Plural:           "leases",
	Metadata:         Plain,
	CreateOnUpdate:   true,
	Conditional:      true,

	Prepare: func(_ context.Context, l, old *coordinationv1.Lease) {
		// coordinated leader election is off by default upstream
		if old == nil || old.Spec.Strategy == nil {
			l.Spec.Strategy = nil
		}
		if old == nil || old.Spec.PreferredHolder == nil {
			l.Spec.PreferredHolder = nil
		}
	},
	Validate: validateLease,
	Columns: []Column[*coordinationv1.Lease]{
		nameColumn[*coordinationv1.Lease](),
		column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"], 0,
			func(l *coordinationv1.Lease) any { return deref(l.Spec.HolderIdentity, "") }),
		ageColumn[*coordinationv1.Lease](),
	},
}
