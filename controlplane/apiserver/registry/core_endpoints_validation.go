package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateEndpoints(_ context.Context, e, old *corev1.Endpoints) field.ErrorList {
	if old != nil && same(e.Subsets, old.Subsets) {
		return nil // good when they were written
	}
	var f faults
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			f.required(at, "must specify `addresses` or `notReadyAddresses`")
		}
		for j := range s.Addresses {
			f.add(validateEndpointAddress(&s.Addresses[j], at.Child("addresses").Index(j)))
		}
		for j := range s.NotReadyAddresses {
			f.add(validateEndpointAddress(&s.NotReadyAddresses[j], at.Child("notReadyAddresses").Index(j)))
		}
		for j, port := range s.Ports {
			p := at.Child("ports").Index(j)
			if port.Name != "" {
				f.add(dnsLabel(port.Name, p.Child("name")))
			} else if len(s.Ports) > 1 {
				f.required(p.Child("name"), "")
			}
			f.add(portNumber(port.Port, p.Child("port")))
			protocol(&f, port.Protocol, p)
			if port.AppProtocol != nil {
				f.add(qualifiedName(*port.AppProtocol, p.Child("appProtocol")))
			}
		}
	}
	return f.list
}

func validateEndpointAddress(a *corev1.EndpointAddress, at *field.Path) field.ErrorList {
	var f faults
	f.add(ipValue(a.IP, nil, at.Child("ip")))
	if a.Hostname != "" {
		f.add(dnsLabel(a.Hostname, at.Child("hostname")))
	}
	if a.NodeName != nil {
		f.add(invalid(NameIsDNSSubdomain(*a.NodeName, false), *a.NodeName, at.Child("nodeName")))
	}
	f.add(endpointIP(a.IP, at.Child("ip")))
	return f.list
}
