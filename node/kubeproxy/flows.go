package kubeproxy

import (
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubeproxy/conntrack"
)

// living are the endpoints that live, by the pools of a front: a Service has a front for
// each of its addresses, which all lead to the same ones.
type living map[[2]string]map[netip.AddrPort]bool

func (l living) of(t Target, pool func(name string) (eps, ending []netip.AddrPort)) map[netip.AddrPort]bool {
	key := [2]string{t.Pool, t.Inside}
	all, known := l[key]
	if known {
		return all
	}
	all = map[netip.AddrPort]bool{}
	for _, name := range key {
		eps, ending := pool(name)
		for _, list := range [][]netip.AddrPort{eps, ending} {
			for _, ep := range list {
				all[ep] = true
			}
		}
	}
	l[key] = all
	return all
}

// AddFlows adds to stale, for a family, the UDP fronts of a Service that has the rules
// now and had was before, with the endpoints that live. node are the rules of the node
// itself: where node ports are; without addresses they are at all of this machine.
func AddFlows(stale *conntrack.Stale, v6 bool, was, now, node Rules) {
	if stale.Endpoints == nil {
		stale.Endpoints = map[netip.AddrPort]map[netip.AddrPort]bool{}
	}
	fronts := maps.Clone(now.Fronts)
	for f := range was.Fronts {
		if _, stays := fronts[f]; !stays {
			if fronts == nil {
				fronts = map[Front]Target{}
			}
			fronts[f] = Target{}
		}
	}
	living := living{}
	for front, target := range fronts {
		if front.Protocol != corev1.ProtocolUDP || front.Addr.Is6() != v6 {
			continue
		}
		stale.Endpoints[netip.AddrPortFrom(front.Addr, front.Number)] = living.of(target, func(name string) (eps, ending []netip.AddrPort) {
			return now.Pools[name].Endpoints, now.Pools[name].Ending
		})
		if front.IsNodePort() && stale.Local == nil {
			if stale.Local = node.NodeAddresses; len(stale.Local) == 0 {
				stale.Local = conntrack.LocalAddresses(v6)
			}
		}
	}
}
