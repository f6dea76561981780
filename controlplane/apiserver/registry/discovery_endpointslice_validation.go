package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

const (
	mostEndpoints = 1000
	mostAddresses = 100
	mostPorts     = 20000
	mostTopology  = 16
	mostHints     = 8
)

func validateEndpointSlice(_ context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
	var f faults
	f.add(oneOfNeeded(s.AddressType, field.NewPath("addressType"), discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6))
	f.add(validateSlicePorts(s.Ports, field.NewPath("ports")))
	if old == nil || !same(s.Endpoints, old.Endpoints) {
		f.add(validateSliceEndpoints(s, field.NewPath("endpoints")))
	}
	if old != nil {
		f.add(unchanged(s.AddressType, old.AddressType, field.NewPath("addressType")))
	}
	return f.list
}

func validateSlicePorts(ports []discoveryv1.EndpointPort, at *field.Path) field.ErrorList {
	var f faults
	if len(ports) > mostPorts {
		return field.ErrorList{field.TooMany(at, len(ports), mostPorts)}
	}
	names := map[string]bool{}
	for i, port := range ports {
		p := at.Index(i)
		name := deref(port.Name, "")
		if name != "" {
			f.add(dnsLabel(name, p.Child("name")))
		}
		if names[name] {
			f.duplicate(p.Child("name"), port.Name)
		}
		names[name] = true
		if port.Protocol == nil {
			f.required(p.Child("protocol"), "")
		} else {
			f.add(oneOf(*port.Protocol, p.Child("protocol"), corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP))
		}
		if port.AppProtocol != nil {
			f.add(qualifiedName(*port.AppProtocol, p.Child("appProtocol")))
		}
	}
	return f.list
}

func validateSliceEndpoints(s *discoveryv1.EndpointSlice, at *field.Path) field.ErrorList {
	var f faults
	if len(s.Endpoints) > mostEndpoints {
		return field.ErrorList{field.TooMany(at, len(s.Endpoints), mostEndpoints)}
	}
	for i := range s.Endpoints {
		e, p := &s.Endpoints[i], at.Index(i)
		q := p.Child("addresses")
		if n := len(e.Addresses); n == 0 {
			f.required(q, "must contain at least 1 address")
		} else if n > mostAddresses {
			f.list = append(f.list, field.TooMany(q, n, mostAddresses))
		}
		for j, a := range e.Addresses {
			f.add(validateSliceAddress(a, s.AddressType, q, q.Index(j)))
		}
		if e.NodeName != nil {
			f.add(invalid(NameIsDNSSubdomain(*e.NodeName, false), *e.NodeName, p.Child("nodeName")))
		}
		if n := len(e.DeprecatedTopology); n > mostTopology {
			f.list = append(f.list, field.TooMany(p.Child("deprecatedTopology"), n, mostTopology))
		}
		f.add(metavalidation.ValidateLabels(e.DeprecatedTopology, p.Child("deprecatedTopology")))
		if e.Hostname != nil {
			f.add(dnsLabel(*e.Hostname, p.Child("hostname")))
		}
		if e.Hints != nil {
			f.add(validateHints(e.Hints, p.Child("hints")))
		}
	}
	return f.list
}

func validateSliceAddress(a string, typ discoveryv1.AddressType, list, at *field.Path) field.ErrorList {
	var f faults
	switch typ {
	case discoveryv1.AddressTypeIPv4:
		if errs := ipValue(a, nil, at); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv4String(a) {
			f.invalid(list, a, "must be an IPv4 address")
		}
		f.add(endpointIP(a, at))
	case discoveryv1.AddressTypeIPv6:
		if errs := utilvalidation.IsValidIP(at, a); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv6String(a) {
			f.invalid(list, a, "must be an IPv6 address")
		}
		f.add(endpointIP(a, at))
	case discoveryv1.AddressTypeFQDN:
		f.add(utilvalidation.IsFullyQualifiedDomainName(at, a))
	}
	return f.list
}

func validateHints(h *discoveryv1.EndpointHints, at *field.Path) field.ErrorList {
	var f faults
	hints := func(part string, n int, name func(int) string, rule func(string) []string) bool {
		p := at.Child(part)
		if n > mostHints {
			f.list = append(f.list, field.TooMany(p, n, mostHints))
			return false
		}
		seen := map[string]bool{}
		for i := range n {
			if seen[name(i)] {
				f.duplicate(p.Index(i).Child("name"), name(i))
			}
			seen[name(i)] = true
			f.add(invalid(rule(name(i)), name(i), p.Index(i).Child("name")))
		}
		return true
	}
	if hints("forZones", len(h.ForZones), func(i int) string { return h.ForZones[i].Name }, utilvalidation.IsValidLabelValue) {
		hints("forNodes", len(h.ForNodes), func(i int) string { return h.ForNodes[i].Name },
			func(s string) []string { return NameIsDNSSubdomain(s, false) })
	}
	return f.list
}
