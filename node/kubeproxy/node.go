package kubeproxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeKey is that of the rules which are the node's and no Service's. No object
// of the API has this name.
var nodeKey = cache.ObjectName{}

// A host is what decides which endpoints are near, and who is masqueraded.
type host struct {
	name, zone    string
	masqueradeAll bool
}

// planNode decides the rules of the node itself: where node ports are, and which
// addresses are for Services alone.
func planNode(node *corev1.Node, cidrs []*networkingv1.ServiceCIDR) Rules {
	r := Rules{NodeAddresses: map[netip.Addr]bool{}, Pools: map[string]Pool{}}
	for _, a := range primary(node) {
		r.NodeAddresses[a] = true
	}
	for _, v6 := range []bool{false, true} {
		var ranges []netip.Prefix
		for _, c := range cidrs {
			for _, s := range c.Spec.CIDRs {
				if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is6() == v6 {
					ranges = append(ranges, p)
				}
			}
		}
		if len(ranges) > 0 {
			r.Pools[ServiceRanges(v6)] = Pool{V6: v6, Ranges: disjoint(ranges)}
		}
	}
	return r
}

// ServiceRanges is the pool of addresses that Services may have. No Service's pool
// has this name.
func ServiceRanges(v6 bool) string {
	if v6 {
		return "service-ranges-6"
	}
	return "service-ranges-4"
}

// primary are a node's first addresses of each family, internal before external:
// those that kube-proxy means by "primary".
func primary(node *corev1.Node) (addrs []netip.Addr) {
	if node == nil {
		return nil
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if a.Type != kind || err != nil || forbidden(addr) {
				continue
			}
			if !slices.ContainsFunc(addrs, func(b netip.Addr) bool { return b.Is6() == addr.Is6() }) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

// node is this one's object; nil until there is one.
func (p *Proxy) node() *corev1.Node {
	o, ok, err := p.nodes.GetStore().GetByKey(p.cfg.NodeName)
	if err != nil || !ok {
		return nil
	}
	return o.(*corev1.Node)
}

func (p *Proxy) host() host { return host{p.cfg.NodeName, zone(p.node()), p.cfg.MasqueradeAll} }

func zone(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	return node.Labels[corev1.LabelTopologyZone]
}

func (p *Proxy) planNode() Rules {
	var cidrs []*networkingv1.ServiceCIDR
	for _, o := range p.cidrs.GetStore().List() {
		cidrs = append(cidrs, o.(*networkingv1.ServiceCIDR))
	}
	return planNode(p.node(), cidrs)
}

// followNode has the rules follow this node's object and the ranges of Services.
// delivered is when what is there at first has reached the queue.
func (p *Proxy) followNode() (delivered []cache.InformerSynced, err error) {
	changed := func(any) { p.queue.add(nodeKey) }
	ranges, err := p.watches.Handle(p.cidrs, cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(_, o any) { changed(o) }})
	if err != nil {
		return nil, err
	}
	follow := func(old, new *corev1.Node) {
		if !slices.Equal(primary(old), primary(new)) {
			p.queue.add(nodeKey)
		}
		if zone(old) != zone(new) { // which endpoints are near
			for _, o := range p.services.GetStore().List() {
				p.queue.add(cache.MetaObjectToName(o.(*corev1.Service)))
			}
		}
	}
	nodes, err := p.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { follow(nil, o.(*corev1.Node)) },
		UpdateFunc: func(old, new any) { follow(old.(*corev1.Node), new.(*corev1.Node)) },
		// A node that is deleted while it runs is made again.
	})
	if err != nil {
		return nil, err
	}
	return []cache.InformerSynced{ranges, nodes.HasSynced}, nil
}
