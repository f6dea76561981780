package kubeproxy

import (
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubeproxy/conntrack"
)

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
	for front, target := range fronts {
		if front.Protocol != corev1.ProtocolUDP || front.Addr.Is6() != v6 {
			continue
		}
		living := map[netip.AddrPort]bool{}
		for _, name := range []string{target.Pool, target.Inside} {
			for _, eps := range [][]netip.AddrPort{now.Pools[name].Endpoints, now.Pools[name].Ending} {
				for _, ep := range eps {
					living[ep] = true
				}
			}
		}
		stale.Endpoints[netip.AddrPortFrom(front.Addr, front.Number)] = living
		if front.IsNodePort() && stale.Local == nil {
			if stale.Local = node.NodeAddresses; len(stale.Local) == 0 {
				stale.Local = conntrack.LocalAddresses(v6)
			}
		}
	}
}
