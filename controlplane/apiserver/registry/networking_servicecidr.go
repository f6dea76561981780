package registry

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

var serviceCIDRs = &Kind[*networkingv1.ServiceCIDR]{
	GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
	Plural:           "servicecidrs",
	Cluster:          true,

	Prepare: spec(
		func(c *networkingv1.ServiceCIDR) { c.Status = networkingv1.ServiceCIDRStatus{} },
		func(c, old *networkingv1.ServiceCIDR) { c.Status = old.Status }, nil),
	Validate: validateServiceCIDR,
	Columns: []Column[*networkingv1.ServiceCIDR]{
		nameColumn[*networkingv1.ServiceCIDR](),
		column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"], 0,
			func(c *networkingv1.ServiceCIDR) any { return strings.Join(c.Spec.CIDRs, ",") }),
		ageColumn[*networkingv1.ServiceCIDR](),
	},
	Sub: []Subresource[*networkingv1.ServiceCIDR]{
		statusOf(func(c, old *networkingv1.ServiceCIDR) {
			c.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
		}, nil),
	},
}

func validateServiceCIDR(_ context.Context, c, old *networkingv1.ServiceCIDR) field.ErrorList {
	if old != nil {
		return validateServiceCIDRUpdate(c, old)
	}
	return validateServiceCIDRSpec(&c.Spec, field.NewPath("spec", "cidrs"))
}

func validateServiceCIDRSpec(s *networkingv1.ServiceCIDRSpec, at *field.Path) field.ErrorList {
	switch n := len(s.CIDRs); {
	case n == 0:
		return field.ErrorList{field.Required(at, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(at, s, "may only hold up to 2 values")}
	}
	var f faults
	for i, cidr := range s.CIDRs {
		f.add(utilvalidation.IsValidCIDR(at.Index(i), cidr))
	}
	if len(s.CIDRs) == 2 {
		a, b := netutils.IPFamilyOfCIDRString(s.CIDRs[0]), netutils.IPFamilyOfCIDRString(s.CIDRs[1])
		if a == b && a != netutils.IPFamilyUnknown {
			f.invalid(at, s.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")
		}
	}
	return f.list
}

// validateServiceCIDRUpdate lets a single range get a second one and nothing else.
func validateServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	var f faults
	at := field.NewPath("spec", "cidrs")
	now, was := c.Spec.CIDRs, old.Spec.CIDRs
	switch {
	case len(now) == len(was):
		for i := range was {
			if now[i] != was[i] {
				f.invalid(at.Index(i), now[i], "field is immutable")
			}
		}
	case len(was) == 1 && len(now) == 2:
		if now[0] != was[0] {
			f.invalid(at.Index(0), now[0], "field is immutable")
		}
		f.add(validateServiceCIDRSpec(&c.Spec, at))
	default:
		f.invalid(at, now, "field is immutable")
	}
	return f.list
}
