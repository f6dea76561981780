package registry

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

func validateService(_ context.Context, s, old *corev1.Service) field.ErrorList {
	var f faults
	if old != nil {
		f.add(validateServiceUpdate(s, old))
	}
	spec := field.NewPath("spec")
	hints, hasHints := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, hasMode := s.Annotations[corev1.AnnotationTopologyMode]
	if hasHints && hasMode && hints != mode {
		f.invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", corev1.DeprecatedAnnotationTopologyAwareHints))
	}
	if len(s.Spec.Ports) == 0 && !isHeadless(s) && s.Spec.Type != corev1.ServiceTypeExternalName {
		f.required(spec.Child("ports"), "")
	}
	f.add(validateServiceType(s, spec))
	f.add(validateServicePorts(s, spec.Child("ports")))
	if s.Spec.Selector != nil {
		f.add(metavalidation.ValidateLabels(s.Spec.Selector, spec.Child("selector")))
	}
	f.add(validateSessionAffinity(&s.Spec, spec))
	f.add(ValidateClusterIPs(s, old))
	var before []string
	if old != nil {
		before = old.Spec.ExternalIPs
	}
	for i, ip := range s.Spec.ExternalIPs {
		p := spec.Child("externalIPs").Index(i)
		if errs := ipValue(ip, before, p); len(errs) > 0 {
			f.add(errs)
		} else {
			f.add(endpointIP(ip, p))
		}
	}
	f.add(validateSourceRanges(s, old, spec))
	isLB := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if s.Spec.AllocateLoadBalancerNodePorts != nil && !isLB {
		f.forbidden(spec.Child("allocateLoadBalancerNodePorts"), onlyForLB)
	}
	if isLB && s.Spec.AllocateLoadBalancerNodePorts == nil {
		f.required(field.NewPath("allocateLoadBalancerNodePorts"), "")
	}
	f.add(validateLoadBalancerClass(s, spec.Child("loadBalancerClass")))
	f.add(validateTraffic(s, spec))
	return f.list
}

const onlyForLB = "may only be used when `type` is 'LoadBalancer'"

func validateServiceType(s *corev1.Service, spec *field.Path) field.ErrorList {
	var f faults
	f.add(oneOfNeeded(s.Spec.Type, spec.Child("type"), corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort))
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if isHeadless(s) {
			f.invalid(spec.Child("clusterIPs").Index(0), corev1.ClusterIPNone,
				fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type))
		}
	case corev1.ServiceTypeExternalName:
		const not = "may not be set for ExternalName services"
		if len(s.Spec.ClusterIPs) > 0 {
			f.forbidden(spec.Child("clusterIPs"), not)
		}
		if len(s.Spec.IPFamilies) > 0 {
			f.forbidden(spec.Child("ipFamilies"), not)
		}
		if s.Spec.IPFamilyPolicy != nil {
			f.forbidden(spec.Child("ipFamilyPolicy"), not)
		}
		// the name may end with a dot to say that it is complete
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); name == "" {
			f.required(spec.Child("externalName"), "")
		} else {
			f.add(dnsSubdomain(name, spec.Child("externalName")))
		}
	}
	return f.list
}

func validateServicePorts(s *corev1.Service, at *field.Path) field.ErrorList {
	var f faults
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	names, nodePorts, ports := map[string]bool{}, map[key]bool{}, map[key]bool{}
	for i := range s.Spec.Ports {
		port, p := &s.Spec.Ports[i], at.Index(i)
		if port.Name == "" && len(s.Spec.Ports) > 1 {
			f.required(p.Child("name"), "")
		} else if port.Name != "" {
			f.add(dnsLabel(port.Name, p.Child("name")))
			if names[port.Name] {
				f.duplicate(p.Child("name"), port.Name)
			}
			names[port.Name] = true
		}
		f.add(portNumber(port.Port, p.Child("port")))
		protocol(&f, port.Protocol, p)
		f.add(portNumberOrName(port.TargetPort, p.Child("targetPort")))
		if port.AppProtocol != nil {
			f.add(qualifiedName(*port.AppProtocol, p.Child("appProtocol")))
		}
		if port.NodePort != 0 {
			if s.Spec.Type == corev1.ServiceTypeClusterIP {
				f.forbidden(p.Child("nodePort"), "may not be used when `type` is 'ClusterIP'")
			}
			k := key{port.Protocol, port.NodePort}
			if nodePorts[k] {
				f.duplicate(p.Child("nodePort"), port.NodePort)
			}
			nodePorts[k] = true
		}
		k := key{port.Protocol, port.Port}
		if ports[k] {
			f.duplicate(p, corev1.ServicePort{Protocol: port.Protocol, Port: port.Port})
		}
		ports[k] = true
	}
	return f.list
}

func validateSessionAffinity(s *corev1.ServiceSpec, spec *field.Path) field.ErrorList {
	var f faults
	f.add(oneOfNeeded(s.SessionAffinity, spec.Child("sessionAffinity"), corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone))
	p := spec.Child("sessionAffinityConfig")
	switch c := s.SessionAffinityConfig; s.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if c != nil {
			f.forbidden(p, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone))
		}
	case corev1.ServiceAffinityClientIP:
		when := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
		seconds := p.Child("clientIP", "timeoutSeconds")
		switch {
		case c == nil:
			f.required(p, when)
		case c.ClientIP == nil:
			f.required(p.Child("clientIP"), when)
		case c.ClientIP.TimeoutSeconds == nil:
			f.required(seconds, when)
		case *c.ClientIP.TimeoutSeconds <= 0 || *c.ClientIP.TimeoutSeconds > maxAffinitySeconds:
			f.invalid(seconds, *c.ClientIP.TimeoutSeconds, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds))
		}
	}
	return f.list
}

const maxAffinitySeconds = 86400

// ValidateClusterIPs checks what a service says of its addresses and their
// families; old is nil on create.
func ValidateClusterIPs(s, old *corev1.Service) field.ErrorList {
	spec := field.NewPath("spec")
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var f faults
	ips, families, policy := spec.Child("clusterIPs"), spec.Child("ipFamilies"), spec.Child("ipFamilyPolicy")
	switch {
	case s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0:
		f.required(ips, "")
	case s.Spec.ClusterIP != "" && s.Spec.ClusterIPs[0] != s.Spec.ClusterIP:
		f.invalid(ips, s.Spec.ClusterIPs, "first value must match `clusterIP`")
	case s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0:
		f.invalid(ips, s.Spec.ClusterIPs, "must be empty when `clusterIP` is not specified")
	}
	seen := map[corev1.IPFamily]bool{}
	for i, family := range s.Spec.IPFamilies {
		f.add(oneOf(family, families.Index(i), corev1.IPv4Protocol, corev1.IPv6Protocol))
		if seen[family] {
			f.duplicate(families.Index(i), family)
		}
		seen[family] = true
	}
	if p := s.Spec.IPFamilyPolicy; p != nil {
		f.add(oneOf(*p, policy, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack))
	}
	var before []string
	if old != nil {
		before = old.Spec.ClusterIPs
	}
	bad := false
	for i, ip := range s.Spec.ClusterIPs {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(s.Spec.ClusterIPs) > 1 {
				bad = true
				f.invalid(ips, s.Spec.ClusterIPs, "'None' must be the first and only value")
			}
			continue
		}
		errs := ipValue(ip, before, ips.Index(i))
		bad = bad || len(errs) > 0
		f.add(errs)
	}
	if len(s.Spec.ClusterIPs) > 2 {
		f.invalid(ips, s.Spec.ClusterIPs, "may only hold up to 2 values")
	}
	if bad { // what follows would only confuse
		return f.list
	}
	if len(s.Spec.ClusterIPs) > 1 {
		if dual, err := netutils.IsDualStackIPStrings(s.Spec.ClusterIPs); err != nil || !dual {
			f.invalid(ips, s.Spec.ClusterIPs, "may specify no more than one IP for each IP family")
		}
	}
	if isHeadless(s) {
		return f.list
	}
	for i, ip := range s.Spec.ClusterIPs {
		if i >= len(s.Spec.IPFamilies) {
			break
		}
		is6 := netutils.IsIPv6String(ip)
		switch family := s.Spec.IPFamilies[i]; {
		case family == corev1.IPv4Protocol && is6:
			f.invalid(ips.Index(i), ip, fmt.Sprintf("expected an IPv4 value as indicated by `ipFamilies[%v]`", i))
		case family == corev1.IPv6Protocol && !is6:
			f.invalid(ips.Index(i), ip, fmt.Sprintf("expected an IPv6 value as indicated by `ipFamilies[%v]`", i))
		}
	}
	return f.list
}

func validateSourceRanges(s, old *corev1.Service, spec *field.Path) field.ErrorList {
	var f faults
	isLB := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		p := spec.Child("LoadBalancerSourceRanges")
		if !isLB {
			f.forbidden(p, onlyForLB)
		}
		var before []string
		if old != nil {
			for _, r := range old.Spec.LoadBalancerSourceRanges {
				before = append(before, strings.TrimSpace(r))
			}
		}
		for i, r := range s.Spec.LoadBalancerSourceRanges {
			f.add(cidrValue(strings.TrimSpace(r), before, p.Index(i)))
		}
		return f.list
	}
	value, ok := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !ok {
		return nil
	}
	p := field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	if !isLB {
		f.forbidden(p, onlyForLB)
	}
	if old != nil && old.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] == value {
		return f.list
	}
	if value = strings.TrimSpace(value); value != "" {
		for r := range strings.SplitSeq(value, ",") {
			f.add(cidrValue(strings.TrimSpace(r), nil, p))
		}
	}
	return f.list
}

func validateLoadBalancerClass(s *corev1.Service, at *field.Path) field.ErrorList {
	switch c := s.Spec.LoadBalancerClass; {
	case c == nil:
		return nil
	case s.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return field.ErrorList{field.Forbidden(at, onlyForLB)}
	default:
		return qualifiedName(*c, at)
	}
}

func validateTraffic(s *corev1.Service, spec *field.Path) field.ErrorList {
	var f faults
	external := spec.Child("externalTrafficPolicy")
	if externallyAccessible(s) {
		f.add(oneOfNeeded(s.Spec.ExternalTrafficPolicy, external, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal))
	} else if s.Spec.ExternalTrafficPolicy != "" {
		f.invalid(external, s.Spec.ExternalTrafficPolicy, "may only be set for externally-accessible services")
	}
	health := spec.Child("healthCheckNodePort")
	switch port := s.Spec.HealthCheckNodePort; {
	case !needsHealthCheck(s) && port != 0:
		f.invalid(health, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
	case needsHealthCheck(s) && port == 0:
		f.required(health, "")
	case needsHealthCheck(s):
		f.add(portNumber(port, health))
	}
	internal := spec.Child("internalTrafficPolicy")
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		f.add(oneOf(*p, internal, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal))
	} else if s.Spec.Type == corev1.ServiceTypeClusterIP || needsNodePort(s) {
		f.required(internal, "")
	}
	if d := s.Spec.TrafficDistribution; d != nil {
		among(&f, *d, spec.Child("trafficDistribution"), corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
	}
	return f.list
}

const changedOnceSet = "may not change once set"

// validateServiceUpdate holds addresses and families: a second one may come
// and go, the first one stays.
func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	var f faults
	spec := field.NewPath("spec")
	now, was := &s.Spec, &old.Spec
	single := now.IPFamilyPolicy != nil && *now.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	if now.Type != corev1.ServiceTypeExternalName && was.Type != corev1.ServiceTypeExternalName {
		if !(isHeadless(old) && isHeadless(s)) {
			f.add(onlySecondChanges(now.ClusterIPs, was.ClusterIPs, now.ClusterIPs, len(now.ClusterIPs) == 0, single, true,
				"clusterIP", spec.Child("clusterIPs"), spec.Child("ipFamilyPolicy"), now.IPFamilyPolicy))
		}
		if !isHeadless(old) && !isHeadless(s) {
			f.add(onlySecondChanges(now.IPFamilies, was.IPFamilies, now.IPFamilies, len(now.ClusterIPs) == 0, single, false,
				"ipFamily", spec.Child("ipFamilies"), spec.Child("ipFamilyPolicy"), now.IPFamilyPolicy))
		}
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && now.Type == corev1.ServiceTypeLoadBalancer && !same(now.LoadBalancerClass, was.LoadBalancerClass) {
		f.invalid(spec.Child("loadBalancerClass"), now.LoadBalancerClass, changedOnceSet)
	}
	f.add(validateLoadBalancerClass(s, spec.Child("loadBalancerClass")))
	if needsHealthCheck(old) && needsHealthCheck(s) && now.HealthCheckNodePort != was.HealthCheckNodePort {
		f.forbidden(spec.Child("healthCheckNodePort"), "field is immutable")
	}
	return f.list
}

func onlySecondChanges[S ~string](now, was []S, shown any, unset, single, each bool, what string, at, policy *field.Path, policyValue any) field.ErrorList {
	var f faults
	switch {
	case len(was) == len(now):
		for i := range was {
			if was[i] != now[i] {
				p := at.Index(0)
				if each {
					p = at.Index(i)
				}
				f.invalid(p, shown, changedOnceSet)
			}
		}
	case len(was) > len(now):
		if unset {
			f.invalid(at.Index(0), shown, fmt.Sprintf("primary %s can not be unset", what))
		}
		if len(now) > 0 && now[0] != was[0] {
			f.invalid(at.Index(0), shown, changedOnceSet)
		}
		if len(now) == 1 && !single {
			f.invalid(policy, policyValue, fmt.Sprintf("must be set to 'SingleStack' when releasing the secondary %s", what))
		}
	case len(was) > 0 && now[0] != was[0]:
		f.invalid(at.Index(0), shown, changedOnceSet)
	}
	return f.list
}

func validateServiceStatus(_ context.Context, s, old *corev1.Service) field.ErrorList {
	var f faults
	at := field.NewPath("status", "loadBalancer", "ingress")
	ingress := s.Status.LoadBalancer.Ingress
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(ingress) > 0 {
		f.forbidden(at, "may only be used when `spec.type` is 'LoadBalancer'")
		return f.list
	}
	var before []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			before = append(before, in.IP)
		}
	}
	for i, in := range ingress {
		p := at.Index(i)
		if in.IP != "" {
			f.add(ipValue(in.IP, before, p.Child("ip")))
		}
		switch {
		case in.IPMode == nil && in.IP != "":
			f.required(p.Child("ipMode"), "must be specified when `ip` is set")
		case in.IPMode != nil && in.IP == "":
			f.forbidden(p.Child("ipMode"), "may not be specified when `ip` is not set")
		case in.IPMode != nil:
			f.add(oneOf(*in.IPMode, p.Child("ipMode"), corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP))
		}
		f.add(ingressHostname(in.Hostname, p.Child("hostname")))
	}
	return f.list
}

func ingressHostname(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	errs := dnsSubdomain(name, at)
	if netutils.ParseIPSloppy(name) != nil {
		errs = append(errs, field.Invalid(at, name, "must be a DNS name, not an IP address"))
	}
	return errs
}

func warnService(s *corev1.Service) (warnings []string) {
	spec := field.NewPath("spec")
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		warnings = append(warnings, fmt.Sprintf("annotation %s is deprecated, please use %s instead",
			corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
		for i, ip := range s.Spec.ClusterIPs {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(spec.Child("clusterIPs").Index(i), ip)...)
		}
	}
	external := s.Spec.Type == corev1.ServiceTypeExternalName
	if isHeadless(s) {
		if s.Spec.LoadBalancerIP != "" {
			warnings = append(warnings, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(s.Spec.ExternalIPs) > 0 {
			warnings = append(warnings, "spec.externalIPs is ignored for headless services")
		}
		if s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			warnings = append(warnings, "spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		warnings = append(warnings, utilvalidation.GetWarningsForIP(spec.Child("externalIPs").Index(i), ip)...)
	}
	if len(s.Spec.ExternalIPs) > 0 && !isHeadless(s) && !external {
		warnings = append(warnings, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if s.Spec.LoadBalancerIP != "" {
		warnings = append(warnings, utilvalidation.GetWarningsForIP(spec.Child("loadBalancerIP"), s.Spec.LoadBalancerIP)...)
	}
	for i, r := range s.Spec.LoadBalancerSourceRanges {
		warnings = append(warnings, utilvalidation.GetWarningsForCIDR(spec.Child("loadBalancerSourceRanges").Index(i), r)...)
	}
	if external && len(s.Spec.ExternalIPs) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName))
	}
	if !external && s.Spec.ExternalName != "" {
		warnings = append(warnings, fmt.Sprintf("spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName))
	}
	if deref(s.Spec.TrafficDistribution, "") == corev1.ServiceTrafficDistributionPreferClose {
		warnings = append(warnings, fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q",
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return warnings
}
