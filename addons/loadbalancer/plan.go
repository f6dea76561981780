package loadbalancer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// A node is what load balancers need of a Node.
type node struct {
	name string
	// addresses are the external ones, then the internal ones.
	addresses []netip.Addr
	// kubelet is the port that the kubelet serves at.
	kubelet int32
}

// A service is what the plan needs of a Service of type LoadBalancer.
type service struct {
	name     cache.ObjectName
	created  time.Time
	families []corev1.IPFamily
	ports    []port
	// asks says that it asks for certain addresses: those in wanted, and texts in bad
	// that are none.
	asks   bool
	wanted []netip.Addr
	bad    []string
	// local says that only nodes with an endpoint may be asked: those in endpoints.
	local     bool
	endpoints map[string]bool
	// pool is the address pool that it asks for.
	pool string
	// held are the addresses in its status.
	held []netip.Addr
}

// A port is one of a Service, as clients see it.
type port struct {
	number   int32
	protocol corev1.Protocol
}

// A verdict is what a Service gets.
type verdict struct {
	addresses []netip.Addr
	// refused says why addresses that it might have had are not its own.
	refused []string
}

// taken is what one Service alone can have.
type taken struct {
	address netip.Addr
	port
}

// plan gives every Service its addresses: those of the nodes, but for an address
// where a port of the Service is another's or the cluster's. Who has an address
// already keeps it, then the oldest gets it: the outcome depends on the cluster
// alone, and not on the order of events. It takes one pass over all ports.
func plan(services []service, nodes []node, reserved map[port]string) map[cache.ObjectName]verdict {
	order := slices.SortedFunc(slices.Values(services), older)
	owner := map[taken]cache.ObjectName{}
	out := make(map[cache.ObjectName]verdict, len(services))
	for _, held := range []bool{true, false} {
		for i := range order {
			s := &order[i]
			v := out[s.name]
			for _, a := range s.candidates(nodes) {
				if slices.Contains(v.addresses, a.address) || slices.Contains(s.held, a.address) != held {
					continue
				}
				if reason := s.refusal(a, owner, reserved); reason != "" {
					if !slices.Contains(v.refused, reason) {
						v.refused = append(v.refused, reason)
					}
					continue
				}
				for _, p := range s.ports {
					owner[taken{a.address, p}] = s.name
				}
				v.addresses = append(v.addresses, a.address)
			}
			out[s.name] = v
		}
	}
	for _, s := range order {
		v := out[s.name]
		sortLike(v.addresses, s.candidates(nodes))
		for _, text := range s.bad {
			v.refused = append(v.refused, fmt.Sprintf("%q is no IP address", text))
		}
		out[s.name] = v
	}
	return out
}

func older(a, b service) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
}

// A candidate is an address that a Service may have, and its node.
type candidate struct {
	address netip.Addr
	of      *node
}

// candidates are the addresses of nodes that s may have, in the order in which
// its status has them: by family, external ones first.
func (s *service) candidates(nodes []node) (all []candidate) {
	for _, family := range s.families {
		for i := range nodes {
			n := &nodes[i]
			if s.local && !s.endpoints[n.name] {
				continue
			}
			for _, a := range n.addresses {
				if a.Is6() == (family == corev1.IPv6Protocol) && (!s.asks || slices.Contains(s.wanted, a)) {
					all = append(all, candidate{a, n})
				}
			}
		}
	}
	return all
}

// none says why s has no address, where no address was refused.
func (s *service) none(nodes []node) string {
	switch {
	case len(nodes) == 0:
		return "no address pool has an address for it, and every ready node has the label " + corev1.LabelNodeExcludeBalancers
	case s.asks && len(s.wanted) > 0:
		wanted := make([]string, len(s.wanted))
		for i, a := range s.wanted {
			wanted[i] = a.String()
		}
		return "the address it asks for is neither in an address pool nor a ready node's: " + strings.Join(wanted, ", ")
	case s.local && len(s.endpoints) == 0:
		return "no address pool has an address for it, its externalTrafficPolicy is Local, and no node has a ready endpoint"
	}
	return "no address pool and no ready node has an address of its IP families"
}

// refusal says why s cannot have an address, "" if it can.
func (s *service) refusal(a candidate, owner map[taken]cache.ObjectName, reserved map[port]string) string {
	for _, p := range s.ports {
		who := reserved[p]
		if p == (port{a.of.kubelet, corev1.ProtocolTCP}) {
			who = "the kubelet"
		}
		if have, ok := owner[taken{a.address, p}]; ok && have != s.name {
			who = "Service " + have.String()
		}
		if who != "" {
			return fmt.Sprintf("port %d/%s at %s is %s's", p.number, p.protocol, a.address, who)
		}
	}
	return ""
}

func sortLike(addresses []netip.Addr, order []candidate) {
	at := map[netip.Addr]int{}
	for i, c := range slices.Backward(order) {
		at[c.address] = i
	}
	slices.SortFunc(addresses, func(a, b netip.Addr) int { return cmp.Compare(at[a], at[b]) })
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// nodeOf is what load balancers need of a Node; ok says that they may send to it.
func nodeOf(n *corev1.Node) (of node, ok bool) {
	if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded || n.DeletionTimestamp != nil {
		return node{}, false
	}
	if !isReady(n) {
		return node{}, false
	}
	of = node{name: n.Name, kubelet: n.Status.DaemonEndpoints.KubeletEndpoint.Port}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); a.Type == kind && err == nil && !slices.Contains(of.addresses, ip.Unmap()) && usable(ip) {
				of.addresses = append(of.addresses, ip.Unmap())
			}
		}
	}
	return of, len(of.addresses) > 0
}

// usable says that an address can be a node's towards the outside: a node's status
// is the node's own word.
func usable(a netip.Addr) bool {
	a = a.Unmap()
	return a.Zone() == "" && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// wantedAnnotations name the addresses that a Service asks for, comma separated; the
// second is how MetalLB's users write it.
var wantedAnnotations = []string{"knarr.io/load-balancer-ips", "metallb.io/loadBalancerIPs"}

// serviceOf is what the plan needs of a Service.
func serviceOf(s *corev1.Service) service {
	of := service{
		name: cache.MetaObjectToName(s), created: s.CreationTimestamp.Time, families: s.Spec.IPFamilies,
		local: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	for _, p := range s.Spec.Ports {
		of.ports = append(of.ports, port{p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)})
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			of.held = append(of.held, a.Unmap())
		}
	}
	for _, name := range slices.Backward(poolAnnotations) {
		of.pool = cmp.Or(s.Annotations[name], of.pool)
	}
	text := s.Spec.LoadBalancerIP
	for _, name := range slices.Backward(wantedAnnotations) {
		text = cmp.Or(s.Annotations[name], text)
	}
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		of.asks = true
		if a, err := netip.ParseAddr(one); err == nil {
			of.wanted = append(of.wanted, a.Unmap())
		} else {
			of.bad = append(of.bad, one)
		}
	}
	return of
}

// reservedPorts are the cluster's own at every node.
func reservedPorts(own map[int32]string) map[port]string {
	all := map[port]string{{22, corev1.ProtocolTCP}: "SSH", {10256, corev1.ProtocolTCP}: "kube-proxy", {8472, corev1.ProtocolUDP}: "the pod network"}
	for _, number := range slices.Sorted(maps.Keys(own)) {
		all[port{number, corev1.ProtocolTCP}] = own[number]
	}
	return all
}
