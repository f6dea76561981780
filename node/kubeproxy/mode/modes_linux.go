package mode

import (
	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/iptables"
	"knarr/node/kubeproxy/ipvs"
	"knarr/node/kubeproxy/userspace"
)

// modes in the order that help shows them.
var modes = []mode{
	{"nftables", nil, kubeproxy.RemoveTable},
	{"iptables", func(c Config) (kubeproxy.Dataplane, error) {
		return iptables.New(c.Table, c.ClusterCIDRs, c.NodePorts)
	}, iptables.Remove},
	{"ipvs", func(c Config) (kubeproxy.Dataplane, error) {
		return ipvs.New(c.Table, c.ClusterCIDRs, c.NodePorts, c.Scheduler, c.Timeouts)
	}, ipvs.Remove},
	{"userspace", func(c Config) (kubeproxy.Dataplane, error) {
		return userspace.New(c.Table, c.ClusterCIDRs, c.NodePorts), nil
	}, userspace.Remove},
}
