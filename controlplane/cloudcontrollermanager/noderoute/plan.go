package noderoute

import (
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
	netutils "k8s.io/utils/net"

	"knarr/controlplane/cloudcontrollermanager/instances"
)

// A change is what makes routes those of the nodes.
type change struct {
	remove []*cloudprovider.Route
	create []creation
	// nodes are those whose condition is to be set: all that have a range.
	nodes []*corev1.Node
}

// A creation is a route that a node lacks.
type creation struct {
	node  *corev1.Node
	route *cloudprovider.Route
}

// plan compares the nodes' ranges with the provider's routes within the cluster's
// ranges. Pure; its cost is that of nodes and routes, each looked at twice.
func plan(nodes []*corev1.Node, routes []*cloudprovider.Route, cluster []netip.Prefix) (c change) {
	type id struct {
		node types.NodeName
		cidr string
	}
	have := map[id]*cloudprovider.Route{}
	for _, r := range routes {
		if r.TargetNode != "" && !r.Blackhole {
			have[id{r.TargetNode, r.DestinationCIDR}] = r
		}
	}
	keep := map[id]bool{}
	for _, n := range nodes {
		name := types.NodeName(n.Name)
		for _, cidr := range n.Spec.PodCIDRs {
			r := have[id{name, cidr}]
			if r != nil && (!r.EnableNodeAddresses || instances.SameAddresses(n.Status.Addresses, r.TargetNodeAddresses)) {
				keep[id{name, cidr}] = true
				continue
			}
			c.create = append(c.create, creation{n, &cloudprovider.Route{TargetNode: name, TargetNodeAddresses: n.Status.Addresses, DestinationCIDR: cidr}})
		}
		if len(n.Spec.PodCIDRs) > 0 {
			c.nodes = append(c.nodes, n)
		}
	}
	for _, r := range routes {
		if ours(r, cluster) && (r.Blackhole || !keep[id{r.TargetNode, r.DestinationCIDR}]) {
			c.remove = append(c.remove, r)
		}
	}
	return c
}

// ours reports whether a route begins or ends within the cluster's ranges.
func ours(r *cloudprovider.Route, cluster []netip.Prefix) bool {
	_, cidr, err := netutils.ParseCIDRSloppy(r.DestinationCIDR)
	if err != nil {
		return false
	}
	last := make(net.IP, len(cidr.IP))
	for i := range last {
		last[i] = cidr.IP[i] | ^cidr.Mask[i]
	}
	return slices.ContainsFunc(cluster, func(p netip.Prefix) bool { return within(p, cidr.IP) || within(p, last) })
}

func within(p netip.Prefix, ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && p.Contains(a.Unmap())
}

// condition is what the node says of its routes; changed reports whether it says
// something else now.
func condition(node *corev1.Node, created bool) (c corev1.NodeCondition, changed bool) {
	c = corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated", Message: "RouteController created a route"}
	if !created {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "NoRouteCreated", "RouteController failed to create a route"
	}
	for _, have := range node.Status.Conditions {
		if have.Type == c.Type {
			return c, have.Status != c.Status || have.Reason != c.Reason
		}
	}
	return c, true
}
