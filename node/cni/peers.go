package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/run"
)

// Peers keeps the ways to the pods of the other nodes.
type Peers struct {
	cfg     Config
	node    string
	self    *rest.Config // writes this node's key
	factory informers.SharedInformerFactory
	nodes   cache.SharedIndexInformer
	owners  map[wireguardKey]string // the node that each key is of
}

// NewPeers puts it together for the node of this name, which self may write the Node of;
// it starts nothing.
func NewPeers(c Config, kube, self *rest.Config, node string) (*Peers, error) {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("pod network: %w", err)
	}
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	return &Peers{cfg: c.withDefaults(), node: node, self: self, factory: f, nodes: f.Core().V1().Nodes().Informer()}, nil
}

// slim keeps what a way to a node needs.
func slim(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	if key, has := n.Annotations[publicKeyAnnotation]; has {
		kept.Annotations = map[string]string{publicKeyAnnotation: key}
	}
	return kept, nil
}

// Run follows Nodes until ctx ends. The ways stay when it ends, so that a
// restart breaks no connection.
func (p *Peers) Run(ctx context.Context) error {
	if p.cfg.Backend == NoBackend {
		if err := removeWays(p.cfg); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	_, err := p.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() },
		UpdateFunc: func(old, now any) { // a Node is updated often, and seldom with anything new
			if !same(old.(*corev1.Node), now.(*corev1.Node)) {
				notify()
			}
		},
		DeleteFunc: func(any) { notify() },
	})
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	p.factory.StartWithContext(ctx)
	defer p.factory.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	if !cache.WaitForCacheSync(ctx.Done(), p.nodes.HasSynced) {
		return nil
	}
	if p.cfg.Backend == DirectVXLAN {
		var follower run.Group
		defer follower.Wait()
		defer cancel()
		follower.Loop(ctx, "addresses of this machine", func(ctx context.Context) { followAddresses(ctx, p.cfg.ClusterCIDRs, notify) })
	}
	notify() // what is left of former nodes goes even if there is no other
	for wait := time.Second; ; {
		var again <-chan time.Time
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
		var nodes []*corev1.Node
		for _, o := range p.nodes.GetStore().List() {
			nodes = append(nodes, o.(*corev1.Node))
		}
		if err := errors.Join(p.publishKey(ctx, nodes), p.apply(nodes)); err != nil {
			slog.ErrorContext(ctx, "ways to other nodes' pods, trying again", "in", wait, "err", err)
			again = time.After(wait)
			wait = min(2*wait, time.Minute)
		} else {
			wait = time.Second
			continue
		}
		select {
		case <-again:
			notify()
		case <-changed:
			notify()
		case <-ctx.Done():
			return nil
		}
	}
}

// apply has the kernel hold the ways to these nodes.
func (p *Peers) apply(nodes []*corev1.Node) error {
	peers := p.cfg.peersOf(nodes, p.node)
	if p.cfg.Backend == WireGuard {
		if p.owners == nil { // the process has just started: the kernel knows which key was whose
			have, err := wireguardOf(p.cfg.Tunnel)
			if err != nil {
				return err
			}
			p.owners = keptOwners(have, peers)
		}
		p.owners = keyOwners(nodes, p.owners)
		dropStolenKeys(peers, p.owners)
	}
	return applyWays(p.cfg, peers)
}

// publishKey has this node's key in its Node, where others are to encrypt for it.
func (p *Peers) publishKey(ctx context.Context, nodes []*corev1.Node) error {
	i := slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == p.node })
	if p.cfg.Backend != WireGuard || i < 0 {
		return nil
	}
	key, err := privateKey(p.cfg.StateDir)
	if err != nil {
		return fmt.Errorf("key of the encrypted tunnel: %w", err)
	}
	mine := wireguardKey(key.PublicKey().Bytes())
	if there, ok := publicKey(nodes[i]); ok && there == mine {
		return nil
	}
	return publishKey(ctx, p.self, p.node, mine)
}

func same(a, b *corev1.Node) bool {
	return slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) && slices.Equal(a.Status.Addresses, b.Status.Addresses) &&
		a.Annotations[publicKeyAnnotation] == b.Annotations[publicKeyAnnotation]
}

// A peer is another node as this one reaches its pods.
type peer struct {
	name   string
	hosts  []netip.Addr // one of each family
	ranges []netip.Prefix
	key    wireguardKey // none where nothing is encrypted
}

// host is the node's address of a family.
func (p peer) host(v6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(p.hosts, func(a netip.Addr) bool { return a.Is6() == v6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.hosts[i], true
}

// peersOf gives the nodes other than self that have pods and an address, in the
// order of their names. A node writes its own Node,
// so a range counts only within the cluster's, and where two overlap only that
// of the older node, this node's own before all, and so does the end of its tunnel:
// no node draws traffic to itself that is another's or the world's. Pure.
func (c Config) peersOf(nodes []*corev1.Node, self string) (peers []peer) {
	own, _ := c.ownRanges()
	taken, ends := newRanges(own), map[string]bool{}
	if len(own) > 0 {
		ends[hardware(own[0]).String()] = true
	}
	for _, n := range byAge(nodes) {
		if n.Name == self {
			continue
		}
		p := peer{name: n.Name}
		if c.Backend == WireGuard {
			p.key, _ = publicKey(n)
		}
		for _, a := range n.Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if a.Type != corev1.NodeInternalIP || err != nil {
				continue
			}
			if _, have := p.host(ip.Is6()); !have {
				p.hosts = append(p.hosts, ip)
			}
		}
		for _, r := range n.Spec.PodCIDRs {
			q, err := netip.ParsePrefix(r)
			if err != nil || len(c.ClusterCIDRs) > 0 && !contained(q, c.ClusterCIDRs) || !taken.add(q) {
				continue
			}
			p.ranges = append(p.ranges, q.Masked())
		}
		if len(p.ranges) == 0 {
			continue
		}
		end := hardware(p.ranges[0]).String()
		if c.vxlan() && ends[end] { // by a range of IPv6 whose length its node chose
			continue
		}
		ends[end] = true
		mine := slices.ContainsFunc(p.hosts, func(a netip.Addr) bool { return slices.Contains(c.NodeIPs, a) })
		if len(p.hosts) > 0 && !mine {
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b peer) int { return strings.Compare(a.name, b.name) })
	return peers
}

// byAge is the nodes, the oldest first.
func byAge(nodes []*corev1.Node) []*corev1.Node {
	return slices.SortedFunc(slices.Values(nodes), func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
}

// keyOwners gives the node that each key is of: the one that it was of before, as long as
// that says so, else the oldest. A node writes its own Node: one that writes another's key
// there draws none of what is for the other. Pure.
func keyOwners(nodes []*corev1.Node, before map[wireguardKey]string) map[wireguardKey]string {
	owners := map[wireguardKey]string{}
	for _, n := range byAge(nodes) {
		key, ok := publicKey(n)
		if _, taken := owners[key]; ok && (!taken || before[key] == n.Name) {
			owners[key] = n.Name
		}
	}
	return owners
}

// keptOwners gives the node that each key was of when the kernel got its peers: the one whose
// range it leads to, which no other node can have. Pure.
func keptOwners(have []wireguardPeer, nodes []peer) map[wireguardKey]string {
	of := map[netip.Prefix]string{}
	for _, n := range nodes {
		for _, r := range n.ranges {
			of[r] = n.name
		}
	}
	owners := map[wireguardKey]string{}
	for _, p := range have {
		for _, r := range p.ranges {
			if name, ok := of[r.Masked()]; ok {
				owners[p.key] = name
			}
		}
	}
	return owners
}

// dropStolenKeys leaves nodes without the keys that are of others.
func dropStolenKeys(peers []peer, owners map[wireguardKey]string) {
	for i, p := range peers {
		if owner := owners[p.key]; p.key != (wireguardKey{}) && owner != p.name {
			slog.Warn("a node has the key of another's encrypted tunnel, and no encrypted way leads to it", "node", p.name, "of", owner)
			peers[i].key = wireguardKey{}
		}
	}
}

// contained reports whether a range is part of one of the cluster's.
func contained(p netip.Prefix, ranges []string) bool {
	return slices.ContainsFunc(ranges, func(s string) bool {
		r, err := netip.ParsePrefix(s)
		return err == nil && r.Bits() <= p.Bits() && r.Contains(p.Addr())
	})
}
