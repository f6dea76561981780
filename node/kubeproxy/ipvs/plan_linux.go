package ipvs

import (
	"net/netip"

	"k8s.io/client-go/tools/cache"

	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/conntrack"
)

// A wanted is one virtual server.
type wanted struct {
	owner     cache.ObjectName
	affinity  int32
	endpoints map[netip.AddrPort]bool
	// finishing are endpoints that serve the flows that they have.
	finishing map[netip.AddrPort]bool
}

// A plan is all that the kernel shall have.
type plan struct {
	servers   map[place]wanted
	addresses map[netip.Addr]bool // of the link
	// outside are those whose clients are masqueraded if they are outside of the pods'
	// ranges, always those whose all are, refused and dropped those without endpoints.
	outside, always, refused, dropped map[place]bool
	allowed                           map[place][]netip.Prefix // where only some may connect
	hairpin                           map[netip.Addr]bool
}

// wanted is the plan for all Services.
func (d *Dataplane) wanted() plan {
	w := plan{
		servers: map[place]wanted{}, addresses: map[netip.Addr]bool{}, outside: map[place]bool{}, always: map[place]bool{},
		refused: map[place]bool{}, dropped: map[place]bool{}, allowed: map[place][]netip.Prefix{}, hairpin: map[netip.Addr]bool{},
	}
	var here map[netip.Addr]bool
	for name, r := range d.rules {
		for a := range r.Hairpins {
			w.hairpin[a] = true
		}
		for a := range r.ClusterIPs {
			w.addresses[a] = true
		}
		for front, t := range r.Fronts {
			addrs := []netip.Addr{front.Addr}
			if front.IsNodePort() {
				if here == nil {
					here = d.nodePortAddresses()
				}
				addrs = addrs[:0]
				for a := range here {
					if a.Is6() == front.Addr.Is6() {
						addrs = append(addrs, a)
					}
				}
			}
			for _, a := range addrs {
				w.front(name, place{front.Protocol, netip.AddrPortFrom(a, front.Number)}, t, r)
				if !front.IsNodePort() {
					w.addresses[a] = true
				}
			}
		}
	}
	return w
}

func (w *plan) front(name cache.ObjectName, p place, t kubeproxy.Target, r kubeproxy.Rules) {
	if t.Firewall != "" {
		w.allowed[p] = r.Pools[t.Firewall].Ranges
	}
	switch {
	case t.Reject:
		w.refused[p] = true
		return
	case t.Pool == "":
		w.dropped[p] = true
		return
	}
	pool := r.Pools[t.Pool]
	s := wanted{owner: name, affinity: pool.Affinity, endpoints: map[netip.AddrPort]bool{}, finishing: map[netip.AddrPort]bool{}}
	for _, ep := range pool.Endpoints {
		s.endpoints[ep] = true
	}
	for _, ep := range pool.Ending {
		s.finishing[ep] = true
	}
	w.servers[p] = s
	switch t.Masquerade {
	case kubeproxy.MasqueradeOutside:
		w.outside[p] = true
	case kubeproxy.MasqueradeAll:
		w.always[p] = true
	}
}

// nodePortAddresses are those of this machine where node ports are. The Services'
// addresses are on a link of this machine too.
func (d *Dataplane) nodePortAddresses() map[netip.Addr]bool {
	if len(d.nodePorts) == 0 {
		return d.node.NodeAddresses
	}
	found := map[netip.Addr]bool{}
	for _, v6 := range []bool{false, true} {
		for a := range conntrack.LocalAddresses(v6) {
			if a.IsLoopback() || a.IsLinkLocalUnicast() || d.link.have[a] {
				continue
			}
			for _, p := range d.nodePorts {
				if p.Contains(a) {
					found[a] = true
				}
			}
		}
	}
	return found
}
