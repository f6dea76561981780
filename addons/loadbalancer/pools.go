package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/loadbalancer/addresspool"
)

// poolAnnotations name the pool that a Service's addresses are to be of; the second is
// how MetalLB's users write it.
var poolAnnotations = []string{"knarr.io/address-pool", "metallb.io/address-pool"}

// A pool is what the plan needs of an AddressPool.
type pool struct {
	name       string
	ranges     []addresspool.Range
	auto       bool
	namespaces []string // none: all
}

func poolOf(p *addresspool.AddressPool) (of pool, problems []string) {
	of = pool{name: p.Name, auto: p.Spec.AutoAssign == nil || *p.Spec.AutoAssign, namespaces: p.Spec.Namespaces}
	of.ranges, problems = p.Spec.Ranges()
	return of, problems
}

func (p *pool) serves(namespace string) bool {
	return len(p.namespaces) == 0 || slices.Contains(p.namespaces, namespace)
}

func (p *pool) contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.ranges, func(r addresspool.Range) bool { return r.Contains(a) })
}

func (p *pool) hasFamily(v6 bool) bool {
	return slices.ContainsFunc(p.ranges, func(r addresspool.Range) bool { return r.First.Is6() == v6 })
}

// allot gives Services the addresses of pools, one of each of their families, and
// returns those that get the nodes' instead. A Service keeps what it has; then the
// oldest chooses first. Services of one namespace may share an address by port: if they
// ask for the same, or if there is no other left.
func allot(services []service, nodes []node, pools []pool) (of map[cache.ObjectName]verdict, others []service) {
	a := allotment{users: map[netip.Addr][]*service{}, next: map[string]netip.Addr{}, nodes: map[netip.Addr]bool{}}
	for i := range nodes {
		for _, address := range nodes[i].addresses {
			a.nodes[address] = true
		}
	}
	of = map[cache.ObjectName]verdict{}
	order := slices.SortedFunc(slices.Values(services), older)
	from := make([][]pool, len(order))
	for i := range order {
		s := &order[i]
		mine, refused := poolsFor(s, pools)
		switch from[i] = mine; {
		case refused != "":
			of[s.name] = verdict{refused: []string{refused}}
		case len(mine) == 0:
			others = append(others, *s)
		default:
			of[s.name] = verdict{addresses: a.keep(s, mine)}
		}
	}
	for i := range order {
		if len(from[i]) > 0 {
			of[order[i].name] = a.complete(&order[i], from[i], of[order[i].name])
		}
	}
	return of, others
}

// poolsFor are the pools that a Service's addresses may be of; none for the nodes'.
func poolsFor(s *service, pools []pool) (mine []pool, refused string) {
	for i := range pools {
		p := &pools[i]
		if !p.serves(s.name.Namespace) || s.pool != "" && p.name != s.pool {
			continue
		}
		switch {
		case s.asks && !slices.ContainsFunc(s.wanted, p.contains):
		case s.pool == "" && !s.asks && (!p.auto || !slices.ContainsFunc(s.families, func(f corev1.IPFamily) bool { return p.hasFamily(f == corev1.IPv6Protocol) })):
		default:
			mine = append(mine, *p)
		}
	}
	if len(mine) == 0 && s.pool != "" {
		return nil, fmt.Sprintf("there is no address pool %q for its namespace and addresses", s.pool)
	}
	return mine, ""
}

// An allotment is who has which address of a pool.
type allotment struct {
	users map[netip.Addr][]*service
	nodes map[netip.Addr]bool   // no pool gives these away
	next  map[string]netip.Addr // of each range, where the first free one is not before
}

// keep are the addresses that a Service has and may have further.
func (a *allotment) keep(s *service, from []pool) (kept []netip.Addr) {
	for _, family := range s.families {
		for _, address := range s.held {
			if address.Is6() == (family == corev1.IPv6Protocol) && in(from, address) && (!s.asks || slices.Contains(s.wanted, address)) && a.refusal(s, address) == "" {
				a.give(s, address)
				kept = append(kept, address)
				break
			}
		}
	}
	return kept
}

// complete adds what is missing to v.
func (a *allotment) complete(s *service, from []pool, v verdict) verdict {
	var all []netip.Addr
	for _, family := range s.families {
		v6 := family == corev1.IPv6Protocol
		if kept := slices.IndexFunc(v.addresses, func(a netip.Addr) bool { return a.Is6() == v6 }); kept >= 0 {
			all = append(all, v.addresses[kept])
			continue
		}
		find := a.free
		if s.asks {
			find = a.wanted
		}
		address, refused := find(s, from, v6)
		if address.IsValid() {
			a.give(s, address)
			all = append(all, address)
		}
		v.refused = append(v.refused, refused...)
	}
	for _, text := range s.bad {
		v.refused = append(v.refused, fmt.Sprintf("%q is no IP address", text))
	}
	v.addresses = all
	return v
}

// wanted is the first address that s asks for and can have.
func (a *allotment) wanted(s *service, from []pool, v6 bool) (netip.Addr, []string) {
	var refused []string
	for _, address := range s.wanted {
		if address.Is6() != v6 || !in(from, address) {
			continue
		}
		reason := a.refusal(s, address)
		if reason == "" {
			return address, nil
		}
		refused = append(refused, reason)
	}
	return netip.Addr{}, refused
}

// maxShared bounds the search for an address to share.
const maxShared = 4096

// free is an address of a family that nobody has, or else one that s can share.
func (a *allotment) free(s *service, from []pool, v6 bool) (netip.Addr, []string) {
	var names []string
	for i := range from {
		if !from[i].hasFamily(v6) {
			continue
		}
		names = append(names, from[i].name)
		for _, r := range from[i].ranges {
			if r.First.Is6() != v6 {
				continue
			}
			if address := a.firstFree(r); address.IsValid() {
				return address, nil
			}
		}
	}
	for i := range from {
		for _, r := range from[i].ranges {
			if r.First.Is6() != v6 {
				continue
			}
			for n, address := 0, r.First; n < maxShared && r.Contains(address); n, address = n+1, address.Next() {
				if a.refusal(s, address) == "" {
					return address, nil
				}
			}
		}
	}
	if len(names) == 0 {
		return netip.Addr{}, nil // its other family may have some
	}
	return netip.Addr{}, []string{"no address is left in address pool " + strings.Join(names, ", ")}
}

// firstFree is the first address of a range that nobody has. Addresses are only given
// away while a plan is made, so that the search goes on where it was.
func (a *allotment) firstFree(r addresspool.Range) netip.Addr {
	key := r.First.String() + "-" + r.Last.String()
	address, ok := a.next[key]
	if !ok {
		address = r.First
	}
	for ; r.Contains(address); address = address.Next() {
		if len(a.users[address]) == 0 && !a.nodes[address] {
			break
		}
	}
	a.next[key] = address
	if !r.Contains(address) {
		return netip.Addr{}
	}
	return address
}

func (a *allotment) give(s *service, address netip.Addr) {
	a.users[address] = append(a.users[address], s)
}

// refusal says why s cannot have an address, "" if it can.
func (a *allotment) refusal(s *service, address netip.Addr) string {
	if a.nodes[address] {
		return fmt.Sprintf("%s is a node's", address)
	}
	for _, other := range a.users[address] {
		if other.name == s.name {
			continue
		}
		if other.name.Namespace != s.name.Namespace {
			return fmt.Sprintf("%s is namespace %s's", address, other.name.Namespace)
		}
		for _, p := range s.ports {
			if slices.Contains(other.ports, p) {
				return fmt.Sprintf("port %d/%s at %s is Service %s's", p.number, p.protocol, address, other.name)
			}
		}
	}
	return ""
}

func in(pools []pool, a netip.Addr) bool {
	return slices.ContainsFunc(pools, func(p pool) bool { return p.contains(a) })
}
