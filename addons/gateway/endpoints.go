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
	return endpointsOf(all, family, t.Port, protocol, w.here)
}

// A host is where endpoints are asked from.
type host struct{ name, zone string }

// A located is an endpoint and whom it is meant for.
type located struct {
	route.Endpoint
	hints *discoveryv1.EndpointHints
}

// endpointsOf are the endpoints of one port in EndpointSlices, in the order of their
// addresses. Pure.
func endpointsOf(of []*discoveryv1.EndpointSlice, family discoveryv1.AddressType, port string, protocol corev1.Protocol, on host) (all []route.Endpoint) {
	var found []located
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
				if e, ok := endpointOf(&s.Endpoints[i], uint16(*p.Port)); ok && len(found) < maxEndpoints {
					found = append(found, located{e, s.Endpoints[i].Hints})
				}
			}
		}
	}
	hint(found, on)
	for i := range found {
		all = append(all, found[i].Endpoint)
	}
	slices.SortFunc(all, func(a, b route.Endpoint) int {
		return cmp.Or(a.Address.Compare(b.Address), boolean(a.Terminating)-boolean(b.Terminating))
	})
	// A pod that two slices have, while it moves from one to the other, is one.
	return slices.CompactFunc(all, func(a, b route.Endpoint) bool { return a.Address == b.Address })
}

// hint marks the endpoints that are meant for a host, as kube-proxy finds them: where all
// that are ready have hints for nodes, and some are for this one, it is those; else likewise
// with zones.
func hint(all []located, on host) {
	nodes := func(h *discoveryv1.EndpointHints) (is, any bool) {
		return slices.ContainsFunc(h.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == on.name }), len(h.ForNodes) > 0
	}
	zones := func(h *discoveryv1.EndpointHints) (is, any bool) {
		return slices.ContainsFunc(h.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == on.zone }), len(h.ForZones) > 0
	}
	for _, of := range []func(*discoveryv1.EndpointHints) (is, any bool){nodes, zones} {
		mine, complete := []int(nil), true
		for i := range all {
			if all[i].Terminating {
				continue
			}
			is, any := false, false
			if h := all[i].hints; h != nil {
				is, any = of(h)
			}
			if complete = complete && any; is {
				mine = append(mine, i)
			}
		}
		if complete && len(mine) > 0 {
			for _, i := range mine {
				all[i].Hinted = true
			}
			return
		}
	}
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
