package registry

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

var endpointSlices = &Kind[*discoveryv1.EndpointSlice]{
	GroupVersionKind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	Plural:           "endpointslices",
	RecheckName:      true,

	Default: func(s *discoveryv1.EndpointSlice) {
		for i := range s.Ports {
			fillPtr(&s.Ports[i].Name, "")
			fillPtr(&s.Ports[i].Protocol, corev1.ProtocolTCP)
		}
	},
	Prepare: func(_ context.Context, s, old *discoveryv1.EndpointSlice) {
		s.Generation = 1
		if old != nil {
			s.Generation = old.Generation
			if s.AddressType != old.AddressType || !same(s.Endpoints, old.Endpoints) ||
				!same(s.Ports, old.Ports) || !same(s.Labels, old.Labels) {
				s.Generation++
			}
		}
		dropOldTopology(s, old)
	},
	Validate: validateEndpointSlice,
	Warn: func(_ context.Context, s, old *discoveryv1.EndpointSlice) []string {
		if old == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
			return []string{"addressType: FQDN endpoints are deprecated"}
		}
		return nil
	},
	Columns: []Column[*discoveryv1.EndpointSlice]{
		nameColumn[*discoveryv1.EndpointSlice](),
		column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"], 0,
			func(s *discoveryv1.EndpointSlice) any { return string(s.AddressType) }),
		column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"], 0, func(s *discoveryv1.EndpointSlice) any {
			var all []string
			for _, p := range s.Ports {
				switch {
				case p.Port != nil:
					all = append(all, strconv.Itoa(int(*p.Port)))
				case p.Name != nil:
					all = append(all, *p.Name)
				default:
					all = append(all, "*")
				}
			}
			return orElse(fewOf(all, 3, ""), "<unset>")
		}),
		column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"], 0, func(s *discoveryv1.EndpointSlice) any {
			var all []string
			for _, e := range s.Endpoints {
				all = append(all, e.Addresses...)
			}
			return fewOf(all, 3, "<unset>")
		}),
		ageColumn[*discoveryv1.EndpointSlice](),
	},
}

// dropOldTopology takes away the deprecated map, which v1 clients cannot write. A
// node's name that it had already becomes the endpoint's.
func dropOldTopology(s, old *discoveryv1.EndpointSlice) {
	known := map[string]bool{}
	if old != nil {
		if same(s.Endpoints, old.Endpoints) {
			return
		}
		for _, e := range old.Endpoints {
			known[e.DeprecatedTopology[corev1.LabelHostname]] = true
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node := e.DeprecatedTopology[corev1.LabelHostname]
		if e.NodeName == nil && node != "" && known[node] && NameIsDNSSubdomain(node, false) == nil {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}
