package kubeproxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Rules are all that one Service puts into the kernel.
type Rules struct {
	// Pools are the lists of endpoints that connections are spread over, by name.
	Pools map[string]Pool
	// Fronts lead from an address, protocol and port to a pool.
	Fronts map[Front]Target
	// ClusterIPs are the Service's own addresses, where nothing else answers.
	ClusterIPs map[netip.Addr]bool
	// Hairpins are endpoints, which may reach themselves through a Service.
	Hairpins map[netip.Addr]bool
	// HealthPort answers load balancers whether there are Local endpoints of the
	// Service on this node; 0 is none.
	HealthPort uint16
	Local      int
	// NodeAddresses are where node ports are, of the rules of the node itself.
	NodeAddresses map[netip.Addr]bool
}

// A Front is where clients connect to. That of a node port has the unspecified
// address of its family: it is at every address of this node.
type Front struct {
	Addr netip.Addr
	Port
}

// IsNodePort says that a front is at the addresses where node ports are.
func (f Front) IsNodePort() bool { return f.Addr.IsUnspecified() }

// A Port is a protocol and number.
type Port struct {
	Protocol corev1.Protocol
	Number   uint16
}

// A Target is a pool, or what happens without one.
type Target struct {
	Pool string
	Masquerade
	Reject bool // it has no endpoint: the client gets an error
	Drop   bool // it has no endpoint on this node: another node answers
	// Inside is the pool for connections from pods and this node itself, where
	// those from elsewhere may only reach endpoints of this node.
	Inside string
	// Firewall is the pool of addresses that may connect; none is all.
	Firewall string
}

// A Pool is the endpoints that connections are spread over.
type Pool struct {
	V6        bool
	Endpoints []netip.AddrPort // ordered
	// Ending are endpoints that serve the UDP flows that they have, and get no
	// other.
	Ending []netip.AddrPort
	// Affinity keeps a client at its endpoint for so many seconds; 0 is off.
	Affinity int32
	// Ranges are of a pool of addresses: disjoint, and in order.
	Ranges []netip.Prefix
}

// Masquerade says which connections take on the node's address, so that answers
// come back this way.
type Masquerade uint8

const (
	MasqueradeOutside Masquerade = iota // those from outside the pod network
	MasqueradeAll
	MasqueradeNever
)

// plan decides the rules of svc from its slices, on a node.
func plan(svc *corev1.Service, endpoints []*discoveryv1.EndpointSlice, on host) Rules {
	r := Rules{Pools: map[string]Pool{}, Fronts: map[Front]Target{}, ClusterIPs: map[netip.Addr]bool{}, Hairpins: map[netip.Addr]bool{}}
	if !proxied(svc) {
		return r
	}
	for _, ip := range svc.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil {
			r.ClusterIPs[addr] = true
		}
	}
	for addr := range r.ClusterIPs {
		ports := portsOf(endpoints, addr.Is6())
		lb := r.balancer(svc, addr.Is6())
		for i := range svc.Spec.Ports {
			p := &svc.Spec.Ports[i]
			r.port(svc, p, addr, backendsAt(ports[portKey{p.Name, p.Protocol}], on.name), lb, on)
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		r.HealthPort, r.Local = uint16(svc.Spec.HealthCheckNodePort), readyHere(endpoints, on.name)
	}
	return r
}

// proxied says whether a Service gets rules.
func proxied(svc *corev1.Service) bool {
	return svc != nil && (svc.DeletionTimestamp == nil || len(svc.Finalizers) > 0) && svc.Spec.Type != corev1.ServiceTypeExternalName &&
		svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone && !notForThisProxy(svc.Labels)
}

// readyHere is how many addresses on this node have a ready endpoint.
func readyHere(endpoints []*discoveryv1.EndpointSlice, node string) int {
	here := map[string]bool{}
	for _, s := range endpoints {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if len(e.Addresses) > 0 && e.NodeName != nil && *e.NodeName == node && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				here[e.Addresses[0]] = true
			}
		}
	}
	return len(here)
}

// notForThisProxy says that a label gives the Service, or endpoints of it, to another
// proxy, or to clients that ask for its endpoints themselves.
func notForThisProxy(labels map[string]string) bool {
	_, other := labels["service.kubernetes.io/service-proxy-name"]
	_, headless := labels[corev1.IsHeadlessService]
	return other || headless
}

// port adds the rules of one port in the family of its cluster address.
func (r *Rules) port(svc *corev1.Service, p *corev1.ServicePort, cluster netip.Addr, backends []backend, lb balancer, on host) {
	v6 := cluster.Is6()
	all, local := near(backends, on), here(backends)
	var ending []netip.AddrPort
	for _, b := range backends {
		r.Hairpins[b.at.Addr()] = true
		if !b.ready && p.Protocol == corev1.ProtocolUDP {
			ending = append(ending, b.at)
		}
	}
	pool := func(use string, eps []netip.AddrPort) string {
		if len(eps) == 0 {
			return ""
		}
		name := poolName(svc, p, use, v6)
		r.Pools[name] = Pool{V6: v6, Endpoints: eps, Ending: ending, Affinity: affinity(svc)}
		return name
	}
	target := func(use string, eps []netip.AddrPort, masq Masquerade) Target {
		switch {
		case len(backends) == 0:
			return Target{Reject: true}
		case len(eps) == 0:
			return Target{Drop: true}
		}
		return Target{Pool: pool(use, eps), Masquerade: masq}
	}
	front := func(addr netip.Addr) Front { return Front{addr, Port{p.Protocol, uint16(p.Port)}} }
	masquerade := MasqueradeOutside
	if on.masqueradeAll {
		masquerade = MasqueradeAll
	}
	if svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal {
		r.Fronts[front(cluster)] = target("local", local, masquerade)
	} else {
		r.Fronts[front(cluster)] = target("cluster", all, masquerade)
	}
	outside := func() Target {
		if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			return target("cluster", all, MasqueradeAll)
		}
		t := target("local", local, MasqueradeNever)
		t.Inside = pool("cluster", all)
		return t
	}
	for _, addr := range parse(svc.Spec.ExternalIPs, v6) {
		if !r.ClusterIPs[addr] { // its own address stays what it is
			r.Fronts[front(addr)] = outside()
		}
	}
	for _, addr := range lb.addrs {
		t := outside()
		t.Firewall = lb.firewall
		r.Fronts[front(addr)] = t
	}
	if p.NodePort != 0 {
		addr := netip.IPv4Unspecified()
		if v6 {
			addr = netip.IPv6Unspecified()
		}
		r.Fronts[Front{addr, Port{p.Protocol, uint16(p.NodePort)}}] = outside()
	}
}

// ingress are the addresses of load balancers that leave them in packets.
func ingress(svc *corev1.Service) (ips []string) {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			ips = append(ips, in.IP)
		}
	}
	return ips
}

// parse returns the addresses of a family that a Service may have.
func parse(ips []string, v6 bool) (addrs []netip.Addr) {
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip); err == nil && a.Is6() == v6 && !forbidden(a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// A balancer is where a Service's load balancer has its ports, all of them, and who may
// connect there.
type balancer struct {
	addrs    []netip.Addr
	firewall string
}

func (r *Rules) balancer(svc *corev1.Service, v6 bool) (b balancer) {
	for _, addr := range parse(ingress(svc), v6) {
		if !r.ClusterIPs[addr] {
			b.addrs = append(b.addrs, addr)
		}
	}
	if len(b.addrs) > 0 {
		b.firewall = r.firewall(svc, v6)
	}
	return b
}

// firewall adds the pool of addresses that may use the Service's load balancer,
// and returns its name; none if all may.
func (r *Rules) firewall(svc *corev1.Service, v6 bool) string {
	var ranges []netip.Prefix
	for _, s := range svc.Spec.LoadBalancerSourceRanges {
		if p, err := netip.ParsePrefix(strings.TrimSpace(s)); err == nil && p.Addr().Is6() == v6 {
			ranges = append(ranges, p)
		}
	}
	if len(ranges) == 0 {
		return ""
	}
	name := poolName(svc, &corev1.ServicePort{}, "ranges", v6)
	r.Pools[name] = Pool{V6: v6, Ranges: disjoint(ranges)}
	return name
}

// disjoint leaves out ranges that are within others.
func disjoint(ranges []netip.Prefix) (kept []netip.Prefix) {
	for i, p := range ranges {
		ranges[i] = p.Masked()
	}
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range ranges { // whatever holds it comes before it
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// affinity is for how many seconds a client stays at its endpoint.
func affinity(svc *corev1.Service) int32 {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return *c.ClientIP.TimeoutSeconds
	}
	return corev1.DefaultClientIPServiceAffinitySeconds
}

// forbidden are addresses that no endpoint may have: they would lead into the
// node itself (CVE-2021-25737).
func forbidden(a netip.Addr) bool {
	return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || a.IsUnspecified()
}

// poolName is the same after a restart, so that clients stay at their endpoints.
func poolName(svc *corev1.Service, p *corev1.ServicePort, use string, v6 bool) string {
	family := "4"
	if v6 {
		family = "6"
	}
	return strings.Join([]string{svc.Namespace, svc.Name, p.Name, string(p.Protocol), use, family}, "/")
}
