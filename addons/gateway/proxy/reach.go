package proxy

import (
	"fmt"
	"net"
	"net/netip"

	"knarr/addons/gateway/route"
)

// A reach is what URLs that tenants name may lead to: nothing that only pods, nodes and
// their own programs are meant to reach. What a Service is asked for goes another way.
type reach struct {
	inside []netip.Prefix      // the ranges of pods and Services
	nodes  map[netip.Addr]bool // of the cluster
	ports  map[uint16]bool     // that anyone may ask nodes at: those of listeners
}

func newReach(inside []netip.Prefix, c *route.Config) *reach {
	r := &reach{inside: inside, nodes: make(map[netip.Addr]bool, len(c.Nodes)), ports: map[uint16]bool{}}
	for _, a := range c.Nodes {
		r.nodes[route.Plain(a)] = true
	}
	for i := range c.Listeners {
		r.ports[c.Listeners[i].Port], r.ports[c.Listeners[i].PublicPort] = true, true
	}
	return r
}

// may says why an address is not to be asked.
func (r *reach) may(at netip.AddrPort) error {
	a := route.Plain(at.Addr())
	if route.Reserved(a, r.inside) || (r.nodes[a] || ofThisNode(a)) && !r.ports[at.Port()] {
		return fmt.Errorf("%s is no address for authentication", at)
	}
	return nil
}

// ofThisNode says whether one of the node's networks gives it this address. What cannot be
// found out is taken for one.
func ofThisNode(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, one := range all {
		if n, ok := one.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && own.Unmap() == a {
				return true
			}
		}
	}
	return false
}
