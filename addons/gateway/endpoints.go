package gateway

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
)

// maxEndpoints bounds those of one backend.
const maxEndpoints = 10000

// endpoints are where a target is.
func (w *world) endpoints(t ingress.Target) []route.Endpoint {
	if w.details == nil {
		return nil
	}
	svc := get[*corev1.Service](w.details.services, t.Service)
	if svc == nil {
		return nil
	}
	if t.Number != 0 {
		if a, err := netip.ParseAddr(svc.Spec.ClusterIP); err == nil {
			return []route.Endpoint{{Address: netip.AddrPortFrom(a, t.Number)}}
		}
		return nil
	}
	found, _ := w.details.slices.GetIndexer().ByIndex(byService, t.Service.String()) // the index is there
	all := make([]*discoveryv1.EndpointSlice, len(found))
	for i, o := range found {
		all[i] = o.(*discoveryv1.EndpointSlice)
	}
	family := discoveryv1.AddressTypeIPv4
	if len(svc.Spec.IPFamilies) > 0 && svc.Spec.IPFamilies[0] == corev1.IPv6Protocol {
		family = discoveryv1.AddressTypeIPv6
	}
	protocol := corev1.ProtocolTCP
	if t.UDP {
		protocol = corev1.ProtocolUDP
	}
	return endpointsOf(all, family, t.Port, protocol)
}

// endpointsOf are the endpoints of one port in EndpointSlices, in the order of their
// addresses. Pure.
func endpointsOf(of []*discoveryv1.EndpointSlice, family discoveryv1.AddressType, port string, protocol corev1.Protocol) (all []route.Endpoint) {
	for _, s := range of {
		if s.AddressType != family {
			continue
		}
		for _, p := range s.Ports {
			if p.Port == nil || *p.Port < 1 || *p.Port > 65535 || p.Name != nil && *p.Name != port || p.Name == nil && port != "" ||
				p.Protocol != nil && *p.Protocol != protocol {
				continue
			}
			for i := range s.Endpoints {
				if e, ok := endpointOf(&s.Endpoints[i], uint16(*p.Port)); ok && len(all) < maxEndpoints {
					all = append(all, e)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b route.Endpoint) int {
		return cmp.Or(a.Address.Compare(b.Address), boolean(a.Terminating)-boolean(b.Terminating))
	})
	// A pod that two slices have, while it moves from one to the other, is one.
	return slices.CompactFunc(all, func(a, b route.Endpoint) bool { return a.Address == b.Address })
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

func endpointOf(e *discoveryv1.Endpoint, port uint16) (is route.Endpoint, ok bool) {
	if len(e.Addresses) == 0 {
		return is, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return is, false
	}
	is.Address = netip.AddrPortFrom(a, port)
	if e.Zone != nil {
		is.Zone = *e.Zone
	}
	ready := e.Conditions.Ready == nil || *e.Conditions.Ready
	serving := e.Conditions.Serving == nil && ready || e.Conditions.Serving != nil && *e.Conditions.Serving
	is.Terminating = !ready && serving && e.Conditions.Terminating != nil && *e.Conditions.Terminating
	return is, ready || is.Terminating
}
