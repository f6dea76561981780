package kubeproxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A backend is an endpoint that takes connections of a port, or ends and serves
// those that it has.
type backend struct {
	at    netip.AddrPort
	ready bool
	here  bool // on this node
	hints *discoveryv1.EndpointHints
}

// portBackends are those of a port, in a family.
func portBackends(p *corev1.ServicePort, endpoints []*discoveryv1.EndpointSlice, v6 bool, node string) (all []backend) {
	for _, s := range endpoints {
		if (s.AddressType == discoveryv1.AddressTypeIPv6) != v6 || s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Port == nil || value(sp.Name) != p.Name || value(sp.Protocol) != "" && *sp.Protocol != p.Protocol {
				continue
			}
			for i := range s.Endpoints {
				if b, ok := newBackend(&s.Endpoints[i], uint16(*sp.Port), node); ok {
					all = append(all, b)
				}
			}
		}
	}
	return all
}

func newBackend(e *discoveryv1.Endpoint, port uint16, node string) (b backend, ok bool) {
	if len(e.Addresses) == 0 {
		return b, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || forbidden(addr) {
		return b, false
	}
	c := e.Conditions
	b = backend{netip.AddrPortFrom(addr, port), c.Ready == nil || *c.Ready, e.NodeName != nil && *e.NodeName == node, e.Hints}
	return b, b.ready || value(c.Serving) && value(c.Terminating)
}

// near are the endpoints for connections that may go anywhere: the ready ones or,
// when there are none, those that still serve while they end. Where all ready
// ones have hints, and some are for this node, or for its zone, it is those.
func near(all []backend, on host) []netip.AddrPort {
	wanted := func(b backend) bool { return b.ready }
	forNode := func(b backend) bool { return b.ready && hints(b, on.name, nodesOf) }
	forZone := func(b backend) bool { return b.ready && hints(b, on.zone, zonesOf) }
	switch {
	case allReady(all, nodesOf) && slices.ContainsFunc(all, forNode):
		wanted = forNode
	case allReady(all, zonesOf) && slices.ContainsFunc(all, forZone):
		wanted = forZone
	}
	return pick(all, wanted)
}

// here are the endpoints for connections that stay on this node.
func here(all []backend) []netip.AddrPort {
	local := slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return !b.here })
	return pick(local, func(b backend) bool { return b.ready })
}

// pick returns those wanted or, when there are none, those that end.
func pick(all []backend, wanted func(backend) bool) (eps []netip.AddrPort) {
	for _, b := range all {
		if wanted(b) {
			eps = append(eps, b.at)
		}
	}
	if len(eps) == 0 {
		for _, b := range all {
			if !b.ready {
				eps = append(eps, b.at)
			}
		}
	}
	return ordered(eps)
}

func nodesOf(h *discoveryv1.EndpointHints) (names []string) {
	for _, n := range h.ForNodes {
		names = append(names, n.Name)
	}
	return names
}

func zonesOf(h *discoveryv1.EndpointHints) (names []string) {
	for _, z := range h.ForZones {
		names = append(names, z.Name)
	}
	return names
}

func hints(b backend, name string, of func(*discoveryv1.EndpointHints) []string) bool {
	return b.hints != nil && slices.Contains(of(b.hints), name)
}

// allReady says whether all ready endpoints have hints of a kind.
func allReady(all []backend, of func(*discoveryv1.EndpointHints) []string) bool {
	return !slices.ContainsFunc(all, func(b backend) bool { return b.ready && (b.hints == nil || len(of(b.hints)) == 0) })
}

func ordered(eps []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(eps, netip.AddrPort.Compare)
	return slices.Compact(eps)
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
