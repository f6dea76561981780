package registry

import (
	"context"
	"fmt"
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

func validateServiceCIDR(_ context.Context, c, old *networkingv1.ServiceCIDR) (errs field.ErrorList) {
	at := field.NewPath("spec", "cidrs")
	if old != nil {
		return validateServiceCIDRUpdate(c, old)
	}
	switch n := len(c.Spec.CIDRs); {
	case n == 0:
		return field.ErrorList{field.Required(at, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(at, c.Spec, "may only hold up to 2 values")}
	}
	for i, cidr := range c.Spec.CIDRs {
		errs = append(errs, utilvalidation.IsValidCIDR(at.Index(i), cidr)...)
	}
	if len(c.Spec.CIDRs) == 2 {
		a, b := netutils.IPFamilyOfCIDRString(c.Spec.CIDRs[0]), netutils.IPFamilyOfCIDRString(c.Spec.CIDRs[1])
		if a == b && a != netutils.IPFamilyUnknown {
			errs = append(errs, field.Invalid(at, c.Spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
	}
	return errs
}

// validateServiceCIDRUpdate lets a single range get a second one and nothing else.
func validateServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) (errs field.ErrorList) {
	at := field.NewPath("spec", "cidrs")
	if len(old.Spec.CIDRs) == 1 && len(c.Spec.CIDRs) == 2 {
		for i, cidr := range old.Spec.CIDRs {
			if c.Spec.CIDRs[i] != cidr {
				errs = append(errs, field.Invalid(at.Index(i), c.Spec.CIDRs[i], "can not change the primary CIDR"))
			}
		}
		return append(errs, validateServiceCIDRFamilies(c, at)...)
	}
	return append(errs, unchanged(c.Spec.CIDRs, old.Spec.CIDRs, at)...)
}

func validateServiceCIDRFamilies(c *networkingv1.ServiceCIDR, at *field.Path) (errs field.ErrorList) {
	for i, cidr := range c.Spec.CIDRs {
		errs = append(errs, utilvalidation.IsValidCIDR(at.Index(i), cidr)...)
	}
	if dual, err := netutils.IsDualStackCIDRStrings(c.Spec.CIDRs); err != nil {
		errs = append(errs, field.Invalid(at, c.Spec.CIDRs, fmt.Sprintf("invalid CIDRs: %v", err)))
	} else if !dual {
		errs = append(errs, field.Invalid(at, c.Spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
	}
	return errs
}
