package registry

import (
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

var endpoints = &Kind[*corev1.Endpoints]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Endpoints"),
	Plural:           "endpoints",
	Short:            []string{"ep"},
	Prefix:           "services/endpoints",
	CreateOnUpdate:   true,

	Default: func(e *corev1.Endpoints) {
		for i := range e.Subsets {
			for j := range e.Subsets[i].Ports {
				if p := &e.Subsets[i].Ports[j]; p.Protocol == "" {
					p.Protocol = corev1.ProtocolTCP
				}
			}
		}
	},
	Validate:   validateEndpoints,
	Deprecated: "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
	Columns: []Column[*corev1.Endpoints]{
		nameColumn[*corev1.Endpoints](),
		column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"], 0,
			func(e *corev1.Endpoints) any { return fewOf(endpointAddresses(e), 3, "<none>") }),
		ageColumn[*corev1.Endpoints](),
	},
}

// endpointAddresses are all ready addresses, with each port where there are any.
func endpointAddresses(e *corev1.Endpoints) (all []string) {
	for i := range e.Subsets {
		s := &e.Subsets[i]
		if len(s.Ports) == 0 {
			for _, a := range s.Addresses {
				all = append(all, a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return all
}
