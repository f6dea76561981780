package registry

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateLease(_ context.Context, l, _ *coordinationv1.Lease) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		f.invalid(at.Child("leaseDurationSeconds"), d, "must be greater than 0")
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		f.invalid(at.Child("leaseTransitions"), n, "must be greater than or equal to 0")
	}
	if deref(l.Spec.PreferredHolder, "") != "" && deref(l.Spec.Strategy, "") == "" {
		f.forbidden(at.Child("preferredHolder"), "may only be specified if `strategy` is defined")
	}
	return f.list
}
