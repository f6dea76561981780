package serviceallocation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/registry"
)

// families settles ipFamilyPolicy and ipFamilies, as far as the ranges of this
// cluster allow.
func (a *Allocator) families(svc, old *corev1.Service) error {
	if external(svc) || keepsFamilies(svc, old) {
		return nil
	}
	spec := &svc.Spec
	if spec.IPFamilyPolicy == nil {
		spec.IPFamilyPolicy = new(defaultPolicy(svc, old))
	}
	if faults := registry.ValidateClusterIPs(svc, old); len(faults) > 0 {
		return invalidService(svc, faults...)
	}
	faults := append(releaseSecondary(svc, old), singleWithTwo(svc)...)
	if faults = append(faults, a.familiesOfAddresses(spec)...); len(faults) > 0 {
		return invalidService(svc, faults...)
	}
	if withoutEndpointsOfOurs(svc) {
		a.fill(spec, true)
		return nil
	}
	if faults := a.servable(spec); len(faults) > 0 {
		return invalidService(svc, faults...)
	}
	a.fill(spec, len(a.ranges) == 2)
	return nil
}

// keepsFamilies reports whether an update leaves a Service as it was that would
// get another address if it were made today: a cluster gone dual-stack does not
// change its Services.
func keepsFamilies(svc, old *corev1.Service) bool {
	return old != nil && old.Spec.Type == svc.Spec.Type &&
		prefersDualStack(svc) && prefersDualStack(old) &&
		slices.Equal(old.Spec.ClusterIPs, svc.Spec.ClusterIPs) && slices.Equal(old.Spec.IPFamilies, svc.Spec.IPFamilies)
}

func prefersDualStack(svc *corev1.Service) bool {
	return svc.Spec.IPFamilyPolicy != nil && *svc.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack
}

func defaultPolicy(svc, old *corev1.Service) corev1.IPFamilyPolicy {
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		return *old.Spec.IPFamilyPolicy
	case withoutEndpointsOfOurs(svc):
		return corev1.IPFamilyPolicyRequireDualStack
	}
	return corev1.IPFamilyPolicySingleStack
}

// withoutEndpointsOfOurs reports whether somebody else fills in the endpoints
// of a headless Service, who may have addresses of families this cluster has not.
func withoutEndpointsOfOurs(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone && len(svc.Spec.Selector) == 0
}

func singleStack(spec *corev1.ServiceSpec) bool {
	return *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
}

// releaseSecondary drops the second address and family of a Service that an
// update makes single-stack, if the update does not name them anew; only such a
// one may lose them.
func releaseSecondary(svc, old *corev1.Service) (faults []*field.Error) {
	if old == nil {
		return nil
	}
	spec, was := &svc.Spec, &old.Spec
	if singleStack(spec) {
		if slices.Equal(was.ClusterIPs, spec.ClusterIPs) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if slices.Equal(was.IPFamilies, spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
		return nil
	}
	if n := len(spec.ClusterIPs); n > 0 && n < len(was.ClusterIPs) {
		faults = append(faults, policyFault(spec, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if n := len(spec.IPFamilies); n > 0 && n < len(was.IPFamilies) {
		faults = append(faults, policyFault(spec, "must be 'SingleStack' to release the secondary IP family"))
	}
	return faults
}

func singleWithTwo(svc *corev1.Service) (faults []*field.Error) {
	spec := &svc.Spec
	if !singleStack(spec) {
		return nil
	}
	if len(spec.ClusterIPs) == 2 {
		faults = append(faults, policyFault(spec, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if len(spec.IPFamilies) == 2 {
		faults = append(faults, policyFault(spec, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return faults
}

// familiesOfAddresses adds the families of the addresses asked for.
func (a *Allocator) familiesOfAddresses(spec *corev1.ServiceSpec) (faults []*field.Error) {
	for i, ip := range spec.ClusterIPs {
		f := familyOfText(ip)
		if ip == corev1.ClusterIPNone || f == "" || i < len(spec.IPFamilies) {
			continue
		}
		if _, ok := a.ranges[f]; !ok {
			path := field.NewPath("spec", "clusterIPs").Index(i)
			faults = append(faults, field.Invalid(path, spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", f)))
			continue
		}
		spec.IPFamilies = append(spec.IPFamilies, f)
	}
	return faults
}

// servable names what this cluster has no range for.
func (a *Allocator) servable(spec *corev1.ServiceSpec) (faults []*field.Error) {
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(a.ranges) < 2 {
		faults = append(faults, policyFault(spec, "this cluster is not configured for dual-stack services"))
	}
	for i, f := range spec.IPFamilies {
		if _, ok := a.ranges[f]; !ok {
			faults = append(faults, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	return faults
}

// fill gives a Service the families it did not name: the cluster's first, and
// the other one if its policy asks for two and there are two.
func (a *Allocator) fill(spec *corev1.ServiceSpec, two bool) {
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{a.primary}
	}
	if two && !singleStack(spec) && len(spec.IPFamilies) == 1 {
		spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
	}
}

func policyFault(spec *corev1.ServiceSpec, text string) *field.Error {
	return field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), spec.IPFamilyPolicy, text)
}
