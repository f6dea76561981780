package kubeproxy

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Rules are all that one Service puts into the kernel.
type Rules struct {
	// Chains say where a connection goes, by chain name.
	Chains map[string]Chain
	// Addresses lead from an address, protocol and port to a chain.
	Addresses map[Front]Target
	// NodePorts lead from a protocol and port of this node to a chain.
	NodePorts map[Port]Target
	// ClusterIPs are the Service's own addresses, where nothing else answers.
	ClusterIPs map[netip.Addr]bool
	// Hairpins are endpoints, which may reach themselves through a Service.
	Hairpins map[netip.Addr]bool
}

// A Front is where clients connect to.
type Front struct {
	Addr netip.Addr
	Port
}

// A Port is a protocol and number.
type Port struct {
	Protocol corev1.Protocol
	Number   uint16
}

// A Target is a chain, or what happens without one.
type Target struct {
	Chain  string
	Reject bool // nobody is behind it: tell the client
	Drop   bool // nobody is behind it on this node: another node answers
}

// A Chain spreads connections over endpoints.
type Chain struct {
	V6, UDP   bool
	Endpoints []netip.AddrPort // ordered
	Masquerade
	// Affinity keeps a client at its endpoint for so many seconds; 0 is off.
	Affinity int32
}

// Masquerade says which connections take on the node's address, so that answers
// come back this way.
type Masquerade int

const (
	MasqueradeOutside Masquerade = iota // those from outside the pod network
	MasqueradeAll
	MasqueradeNever
)

// plan decides the rules of svc from its slices, on a node.
func plan(svc *corev1.Service, endpoints []*discoveryv1.EndpointSlice, node string) Rules {
	r := Rules{Chains: map[string]Chain{}, Addresses: map[Front]Target{}, NodePorts: map[Port]Target{}, ClusterIPs: map[netip.Addr]bool{}, Hairpins: map[netip.Addr]bool{}}
	if svc == nil || svc.DeletionTimestamp != nil && len(svc.Finalizers) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName ||
		svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Labels["service.kubernetes.io/service-proxy-name"] != "" {
		return r
	}
	for _, ip := range svc.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			continue
		}
		r.ClusterIPs[addr] = true
		for i := range svc.Spec.Ports {
			r.port(svc, &svc.Spec.Ports[i], addr, endpoints, node)
		}
	}
	return r
}

// port adds the rules of one port in the family of its cluster address.
func (r *Rules) port(svc *corev1.Service, p *corev1.ServicePort, cluster netip.Addr, endpoints []*discoveryv1.EndpointSlice, node string) {
	v6 := cluster.Is6()
	all, local := backends(svc, p, endpoints, v6, node)
	for _, ep := range all {
		r.Hairpins[ep.Addr()] = true
	}
	affinity := int32(0)
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		affinity = corev1.DefaultClientIPServiceAffinitySeconds
		if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			affinity = *c.ClientIP.TimeoutSeconds
		}
	}
	name := func(use string) string {
		return chainName(svc.Namespace, svc.Name, p.Name, string(p.Protocol), use, v6)
	}
	target := func(use string, eps []netip.AddrPort, masq Masquerade) Target {
		switch {
		case len(all) == 0:
			return Target{Reject: true}
		case len(eps) == 0:
			return Target{Drop: true}
		}
		n := name(use)
		r.Chains[n] = Chain{V6: v6, UDP: p.Protocol == corev1.ProtocolUDP, Endpoints: eps, Masquerade: masq, Affinity: affinity}
		return Target{Chain: n}
	}
	inside := all
	if svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal {
		inside = local
	}
	front := func(addr netip.Addr) Front { return Front{addr, Port{p.Protocol, uint16(p.Port)}} }
	r.Addresses[front(cluster)] = target("cluster", inside, MasqueradeOutside)

	outside, masq := all, MasqueradeAll
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		outside, masq = local, MasqueradeNever
	}
	var fronts []netip.Addr
	for _, ip := range svc.Spec.ExternalIPs {
		fronts = append(fronts, parse(ip, v6)...)
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			fronts = append(fronts, parse(in.IP, v6)...)
		}
	}
	for _, addr := range fronts {
		r.Addresses[front(addr)] = target("external", outside, masq)
	}
	if p.NodePort != 0 && !v6 || p.NodePort != 0 && len(svc.Spec.ClusterIPs) == 1 {
		r.NodePorts[Port{p.Protocol, uint16(p.NodePort)}] = target("external", outside, masq)
	}
}

func parse(s string, v6 bool) []netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Is6() != v6 {
		return nil
	}
	return []netip.Addr{a}
}

// backends are the endpoints that take connections for a port: the ready ones
// or, when there are none, those that still serve while they end.
func backends(svc *corev1.Service, p *corev1.ServicePort, endpoints []*discoveryv1.EndpointSlice, v6 bool, node string) (all, local []netip.AddrPort) {
	var ready, ending, readyHere, endingHere []netip.AddrPort
	for _, s := range endpoints {
		if (s.AddressType == discoveryv1.AddressTypeIPv6) != v6 || s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Port == nil || name(sp.Name) != p.Name || sp.Protocol != nil && *sp.Protocol != p.Protocol {
				continue
			}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				if len(e.Addresses) == 0 {
					continue
				}
				addr, err := netip.ParseAddr(e.Addresses[0])
				if err != nil || forbidden(addr) {
					continue
				}
				at := netip.AddrPortFrom(addr, uint16(*sp.Port))
				here := e.NodeName != nil && *e.NodeName == node
				switch c := e.Conditions; {
				case c.Ready == nil || *c.Ready:
					ready = append(ready, at)
					if here {
						readyHere = append(readyHere, at)
					}
				case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
					ending = append(ending, at)
					if here {
						endingHere = append(endingHere, at)
					}
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	if len(readyHere) == 0 {
		readyHere = endingHere
	}
	return ordered(ready), ordered(readyHere)
}

// forbidden are addresses that no endpoint may have: they would lead into the
// node itself (CVE-2021-25737).
func forbidden(a netip.Addr) bool {
	return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || a.IsUnspecified()
}

func ordered(eps []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(eps, netip.AddrPort.Compare)
	return slices.Compact(eps)
}

func name(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// chainName is short, since the kernel bounds it, and readable at its start.
func chainName(namespace, service, port, protocol, use string, v6 bool) string {
	family := "4"
	if v6 {
		family = "6"
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{namespace, service, port, protocol, use, family}, "/")))
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:10]))
	return use + "-" + hash + "-" + clip(namespace+"/"+service, 80)
}

func clip(s string, n int) string { return s[:min(len(s), n)] }
