package registry

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

func validateIngress(_ context.Context, i, old *networkingv1.Ingress) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &i.Spec
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		f.invalid(at, s.Rules, "either `defaultBackend` or `rules` must be specified")
	}
	if s.DefaultBackend != nil {
		f.add(validateBackend(s.DefaultBackend, at.Child("defaultBackend")))
	}
	for i := range s.Rules {
		f.add(validateIngressRule(&s.Rules[i], at.Child("rules").Index(i)))
	}
	for i, t := range s.TLS {
		p := at.Child("tls").Index(i)
		for j, h := range t.Hosts {
			f.add(hostPattern(h, p.Child("hosts").Index(j)))
		}
		if t.SecretName != "" {
			f.add(invalid(NameIsDNSSubdomain(t.SecretName, false), t.SecretName, p.Child("secretName")))
		}
	}
	if c := s.IngressClassName; c != nil {
		f.add(invalid(NameIsDNSSubdomain(*c, false), *c, at.Child("ingressClassName")))
		if a, ok := i.Annotations[ingressClassAnnotation]; ok && old == nil && a != *c {
			f.invalid(field.NewPath("annotations").Child(ingressClassAnnotation), a, "must match `ingressClassName` when both are specified")
		}
	}
	return f.list
}

func hostPattern(h string, at *field.Path) field.ErrorList {
	if strings.Contains(h, "*") {
		return invalid(utilvalidation.IsWildcardDNS1123Subdomain(h), h, at)
	}
	return dnsSubdomain(h, at)
}

func validateIngressRule(r *networkingv1.IngressRule, at *field.Path) field.ErrorList {
	var f faults
	if r.Host != "" {
		if netutils.ParseIPSloppy(r.Host) != nil {
			f.invalid(at.Child("host"), r.Host, "must be a DNS name, not an IP address")
		}
		f.add(hostPattern(r.Host, at.Child("host")))
	}
	if r.HTTP == nil {
		return f.list
	}
	p := at.Child("http", "paths")
	if len(r.HTTP.Paths) == 0 {
		f.required(p, "")
	}
	for i := range r.HTTP.Paths {
		f.add(validateIngressPath(&r.HTTP.Paths[i], p.Index(i)))
	}
	return f.list
}

func validateIngressPath(h *networkingv1.HTTPIngressPath, at *field.Path) field.ErrorList {
	var f faults
	p := at.Child("path")
	if h.PathType == nil {
		return field.ErrorList{field.Required(at.Child("pathType"), "pathType must be specified")}
	}
	absolute := strings.HasPrefix(h.Path, "/")
	switch *h.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !absolute {
			f.invalid(p, h.Path, "must be an absolute path")
		}
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(h.Path, bad) {
				f.invalid(p, h.Path, fmt.Sprintf("must not contain '%s'", bad))
			}
		}
		for _, bad := range []string{"/..", "/."} {
			if strings.HasSuffix(h.Path, bad) {
				f.invalid(p, h.Path, fmt.Sprintf("cannot end with '%s'", bad))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if h.Path != "" && !absolute {
			f.invalid(p, h.Path, "must be an absolute path")
		}
	default:
		f.add(oneOf(*h.PathType, at.Child("pathType"), networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix))
	}
	f.add(validateBackend(&h.Backend, at.Child("backend")))
	return f.list
}

func validateBackend(b *networkingv1.IngressBackend, at *field.Path) field.ErrorList {
	var f faults
	switch {
	case b.Resource != nil && b.Service != nil:
		f.invalid(at, "", "cannot set both resource and service backends")
	case b.Resource != nil:
		f.add(validateObjectReference(b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name, at.Child("resource")))
	case b.Service != nil:
		p := at.Child("service")
		if b.Service.Name == "" {
			f.required(p.Child("name"), "")
		} else {
			f.add(dnsLabel(b.Service.Name, p.Child("name")))
		}
		switch port := b.Service.Port; {
		case port.Name != "" && port.Number != 0:
			f.invalid(at, "", "cannot set both port name & port number")
		case port.Name != "":
			f.add(invalid(utilvalidation.IsValidPortName(port.Name), port.Name, p.Child("port", "name")))
		case port.Number != 0:
			f.add(portNumber(port.Number, p.Child("port", "number")))
		default:
			f.required(at, "port name or number is required")
		}
	default:
		f.invalid(at, "", "resource or service backend is required")
	}
	return f.list
}

func validateObjectReference(group *string, kind, name string, at *field.Path) field.ErrorList {
	var f faults
	if group != nil {
		f.add(dnsSubdomain(*group, at.Child("apiGroup")))
	}
	for _, part := range []struct{ name, value string }{{"kind", kind}, {"name", name}} {
		if part.value == "" {
			f.required(at.Child(part.name), "")
		} else {
			f.add(invalid(NameIsPathSegment(part.value, false), part.value, at.Child(part.name)))
		}
	}
	return f.list
}

func validateIngressStatus(_ context.Context, i, old *networkingv1.Ingress) field.ErrorList {
	var f faults
	var before []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			before = append(before, in.IP)
		}
	}
	for j, in := range i.Status.LoadBalancer.Ingress {
		p := field.NewPath("status", "loadBalancer", "ingress").Index(j)
		if in.IP != "" {
			f.add(ipValue(in.IP, before, p.Child("ip")))
		}
		f.add(ingressHostname(in.Hostname, p.Child("hostname")))
	}
	return f.list
}

func validateIngressClass(_ context.Context, c, old *networkingv1.IngressClass) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	if old != nil {
		f.add(unchanged(c.Spec.Controller, old.Spec.Controller, at.Child("controller")))
	}
	if len(c.Spec.Controller) > 250 {
		f.list = append(f.list, field.TooLong(at.Child("controller"), "", 250))
	}
	f.add(utilvalidation.IsDomainPrefixedPath(at.Child("controller"), c.Spec.Controller))
	r := c.Spec.Parameters
	if r == nil {
		return f.list
	}
	p := at.Child("parameters")
	f.add(validateObjectReference(r.APIGroup, r.Kind, r.Name, p))
	namespace := p.Child("namespace")
	switch deref(r.Scope, "") {
	case networkingv1.IngressClassParametersReferenceScopeNamespace:
		if r.Namespace == nil {
			f.required(namespace, "`parameters.scope` is set to 'Namespace'")
		} else {
			f.add(invalid(NameIsDNSLabel(*r.Namespace, false), *r.Namespace, namespace))
		}
	case networkingv1.IngressClassParametersReferenceScopeCluster:
		if r.Namespace != nil {
			f.forbidden(namespace, "`parameters.scope` is set to 'Cluster'")
		}
	default:
		if r.Scope == nil {
			f.required(p.Child("scope"), "")
		} else {
			f.add(oneOf(*r.Scope, p.Child("scope"), networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace))
		}
	}
	return f.list
}

func validateNetworkPolicy(_ context.Context, p, old *networkingv1.NetworkPolicy) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &p.Spec
	f.add(metavalidation.ValidateLabelSelector(&s.PodSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("podSelector")))
	var before []string
	if old != nil {
		before = policyCIDRs(&old.Spec)
	}
	for i := range s.Ingress {
		q := at.Child("ingress").Index(i)
		f.add(validatePolicyPorts(s.Ingress[i].Ports, q.Child("ports")))
		f.add(validatePeers(s.Ingress[i].From, before, q.Child("from")))
	}
	for i := range s.Egress {
		q := at.Child("egress").Index(i)
		f.add(validatePolicyPorts(s.Egress[i].Ports, q.Child("ports")))
		f.add(validatePeers(s.Egress[i].To, before, q.Child("to")))
	}
	if len(s.PolicyTypes) > 2 {
		f.invalid(at.Child("policyTypes"), &s.PolicyTypes, "may not specify more than two policyTypes")
		return f.list
	}
	for i, t := range s.PolicyTypes {
		among(&f, t, at.Child("policyTypes").Index(i), networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	}
	return f.list
}

func policyCIDRs(s *networkingv1.NetworkPolicySpec) (all []string) {
	peers := func(list []networkingv1.NetworkPolicyPeer) {
		for _, p := range list {
			if p.IPBlock != nil {
				all = append(append(all, p.IPBlock.CIDR), p.IPBlock.Except...)
			}
		}
	}
	for _, r := range s.Ingress {
		peers(r.From)
	}
	for _, r := range s.Egress {
		peers(r.To)
	}
	return all
}

func validatePolicyPorts(ports []networkingv1.NetworkPolicyPort, at *field.Path) field.ErrorList {
	var f faults
	for i, port := range ports {
		p := at.Index(i)
		if port.Protocol != nil {
			among(&f, *port.Protocol, p.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		}
		end := p.Child("endPort")
		switch {
		case port.Port == nil:
			if port.EndPort != nil {
				f.invalid(end, *port.EndPort, "may not be specified when `port` is not specified")
			}
		case port.Port.Type == intstr.Int:
			f.add(portNumber(port.Port.IntVal, p.Child("port")))
			if port.EndPort != nil {
				if *port.EndPort < port.Port.IntVal {
					f.invalid(end, port.Port.IntVal, "must be greater than or equal to `port`")
				}
				f.add(portNumber(*port.EndPort, end))
			}
		default:
			if port.EndPort != nil {
				f.invalid(end, *port.EndPort, "may not be specified when `port` is non-numeric")
			}
			f.add(invalid(utilvalidation.IsValidPortName(port.Port.StrVal), port.Port.StrVal, p.Child("port")))
		}
	}
	return f.list
}

func validatePeers(peers []networkingv1.NetworkPolicyPeer, before []string, at *field.Path) field.ErrorList {
	var f faults
	for i := range peers {
		peer, p := &peers[i], at.Index(i)
		f.add(metavalidation.ValidateLabelSelector(peer.PodSelector, metavalidation.LabelSelectorValidationOptions{}, p.Child("podSelector")))
		f.add(metavalidation.ValidateLabelSelector(peer.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, p.Child("namespaceSelector")))
		selects := peer.PodSelector != nil || peer.NamespaceSelector != nil
		if peer.IPBlock != nil {
			f.add(validateIPBlock(peer.IPBlock, before, p.Child("ipBlock")))
			if selects {
				f.forbidden(p, "may not specify both ipBlock and another peer")
			}
		} else if !selects {
			f.required(p, "must specify a peer")
		}
	}
	return f.list
}

func validateIPBlock(b *networkingv1.IPBlock, before []string, at *field.Path) field.ErrorList {
	var f faults
	if b.CIDR == "" {
		return field.ErrorList{field.Required(at.Child("cidr"), "")}
	}
	f.add(cidrValue(b.CIDR, before, at.Child("cidr")))
	_, whole, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return f.list
	}
	for i, cidr := range b.Except {
		p := at.Child("except").Index(i)
		f.add(cidrValue(cidr, before, p))
		_, part, err := netutils.ParseCIDRSloppy(cidr)
		if err != nil {
			continue
		}
		w, _ := whole.Mask.Size()
		n, _ := part.Mask.Size()
		if !whole.Contains(part.IP) || w >= n {
			f.invalid(p, cidr, "must be a strict subset of `cidr`")
		}
	}
	return f.list
}
