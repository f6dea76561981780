package kubeproxy

import (
	"cmp"
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

// A portKey is what a port of a Service and one of a slice have in common.
type portKey struct {
	name     string
	protocol corev1.Protocol
}

// A slicePort is a number that the endpoints of a slice have a port at.
type slicePort struct {
	slice  *discoveryv1.EndpointSlice
	number uint16
}

// portsOf groups the ports of the slices of a family, so that a port of a Service
// finds its own without those of the others.
func portsOf(endpoints []*discoveryv1.EndpointSlice, v6 bool) map[portKey][]slicePort {
	all := map[portKey][]slicePort{}
	for _, s := range endpoints {
		if (s.AddressType == discoveryv1.AddressTypeIPv6) != v6 || s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, p := range s.Ports {
			if p.Port != nil {
				key := portKey{value(p.Name), cmp.Or(value(p.Protocol), corev1.ProtocolTCP)}
				all[key] = append(all[key], slicePort{s, uint16(*p.Port)})
			}
		}
	}
	return all
}

// backendsAt are those of a port of a Service.
func backendsAt(ports []slicePort, node string) (all []backend) {
	for _, p := range ports {
		for i := range p.slice.Endpoints {
			if b, ok := newBackend(&p.slice.Endpoints[i], p.number, node); ok {
				all = append(all, b)
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
