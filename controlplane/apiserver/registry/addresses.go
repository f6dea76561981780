package registry

import (
	"fmt"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// ipValue checks an address; those that were there before stay allowed.
func ipValue(ip string, before []string, at *field.Path) field.ErrorList {
	return utilvalidation.IsValidIPForLegacyField(at, ip, true, before)
}

func cidrValue(cidr string, before []string, at *field.Path) field.ErrorList {
	return utilvalidation.IsValidCIDRForLegacyField(at, cidr, true, before)
}

// endpointIP refuses addresses that nothing can be reached at.
func endpointIP(value string, at *field.Path) field.ErrorList {
	ip := netutils.ParseIPSloppy(value)
	if ip == nil {
		return field.ErrorList{field.Invalid(at, value, "must be a valid IP address")}
	}
	var f faults
	if ip.IsUnspecified() {
		f.invalid(at, value, fmt.Sprintf("may not be unspecified (%v)", value))
	}
	if ip.IsLoopback() {
		f.invalid(at, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	}
	if ip.IsLinkLocalUnicast() {
		f.invalid(at, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	}
	if ip.IsLinkLocalMulticast() {
		f.invalid(at, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
	return f.list
}

// onePerFamily checks a list of addresses of which there may be one of each
// family.
func onePerFamily(values []string, shown any, at *field.Path) field.ErrorList {
	if len(values) < 2 {
		return nil
	}
	dual, err := netutils.IsDualStackIPStrings(values)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("failed to check for dual stack with error:%v", err))}
	}
	if !dual || len(values) > 2 {
		return field.ErrorList{field.Invalid(at, shown, "may specify no more than one IP for each IP family")}
	}
	return nil
}
