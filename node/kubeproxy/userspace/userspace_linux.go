// Package userspace is kube-proxy's oldest mode, for hosts whose kernel can rewrite no
// packets: this process listens where Services are, and copies what comes to an
// endpoint, one after the other. It reads and writes sockets, and the routes that make
// the Services' addresses this machine's.
//
// An endpoint sees the node's address, never the client's. Services answer as long as
// this process runs.
package userspace

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/conntrack"
)

// A Dataplane is kube-proxy's, by sockets of this process.
type Dataplane struct {
	routes    routes
	cluster   []netip.Prefix
	nodePorts []netip.Prefix
	node      kubeproxy.Rules
	rules     map[cache.ObjectName]kubeproxy.Rules
	balancers map[string]*balancer // by pool
	sockets   map[place]*socket
}

// A place is where one socket listens: a front, or a node port at one address.
type place struct {
	protocol corev1.Protocol
	at       netip.AddrPort
}

// New listens at nothing yet. name tells apart the routes of several proxies of one
// host. Connections from the cluster's ranges and from this machine are inside.
// Node ports are at the addresses of this machine in nodePorts, or else at those of its
// Node object.
func New(name string, cluster, nodePorts []netip.Prefix) *Dataplane {
	return &Dataplane{
		routes: newRoutes(name), cluster: cluster, nodePorts: nodePorts, rules: map[cache.ObjectName]kubeproxy.Rules{},
		balancers: map[string]*balancer{}, sockets: map[place]*socket{},
	}
}

// Apply listens where the rules say. A Service one of whose sockets cannot be opened
// is refused, and is served at the others.
func (d *Dataplane) Apply(changes map[cache.ObjectName]kubeproxy.Rules, all bool) (map[cache.ObjectName]error, error) {
	refused := map[cache.ObjectName]error{}
	if all {
		d.rules = map[cache.ObjectName]kubeproxy.Rules{}
		if err := d.routes.read(); err != nil {
			return nil, err
		}
	}
	pools := map[string]bool{} // that were there before
	for name, r := range changes {
		for pool := range d.rules[name].Pools {
			pools[pool] = true
		}
		if name == (cache.ObjectName{}) {
			d.node = r
			continue
		}
		d.rules[name] = r
		if len(r.Fronts) == 0 {
			delete(d.rules, name)
		}
	}
	if err := d.routes.set(d.addresses()); err != nil {
		return nil, err
	}
	for _, r := range changes {
		for pool, p := range r.Pools {
			delete(pools, pool)
			if b := d.balancers[pool]; b != nil {
				b.set(p)
			} else {
				d.balancers[pool] = newBalancer(p)
			}
		}
	}
	if all { // pools of an earlier try too
		for pool := range d.balancers {
			pools[pool] = true
		}
		for _, r := range d.rules {
			for pool := range r.Pools {
				delete(pools, pool)
			}
		}
	}
	d.listen(refused)
	for pool := range pools {
		delete(d.balancers, pool)
	}
	return refused, nil
}

// listen opens and closes sockets until they are those of the rules.
func (d *Dataplane) listen(refused map[cache.ObjectName]error) {
	wanted := map[place]way{}
	owner := map[place]cache.ObjectName{}
	for name, r := range d.rules {
		for front, target := range r.Fronts {
			w, ok := d.way(r, target)
			if !ok {
				continue
			}
			for _, addr := range d.where(front) {
				p := place{front.Protocol, netip.AddrPortFrom(addr, front.Number)}
				wanted[p], owner[p] = w, name
			}
		}
	}
	for p, s := range d.sockets {
		if _, stays := wanted[p]; !stays {
			s.close()
			delete(d.sockets, p)
		}
	}
	for p, w := range wanted {
		if s := d.sockets[p]; s != nil {
			s.way.Store(&w)
			continue
		}
		s, err := open(p, w)
		if err != nil {
			refused[owner[p]] = fmt.Errorf("listen at %s: %w", p.at, err)
			continue
		}
		d.sockets[p] = s
	}
}

// way is how connections to a front go on; none if nobody shall listen, so that the
// kernel refuses them.
func (d *Dataplane) way(r kubeproxy.Rules, t kubeproxy.Target) (way, bool) {
	if t.Reject || t.Drop && t.Inside == "" {
		return way{}, false
	}
	w := way{to: d.balancers[t.Pool], inside: d.balancers[t.Inside], cluster: d.cluster}
	if t.Firewall != "" {
		w.only = r.Pools[t.Firewall].Ranges
	}
	return w, true
}

// where are the addresses of a front.
func (d *Dataplane) where(front kubeproxy.Front) (addrs []netip.Addr) {
	if !front.IsNodePort() {
		return []netip.Addr{front.Addr}
	}
	if len(d.nodePorts) > 0 {
		return d.routes.local(d.nodePorts, front.Addr.Is6())
	}
	for a := range d.node.NodeAddresses {
		if a.Is6() == front.Addr.Is6() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// addresses are what this machine must take for its own: the Services' ranges, and the
// addresses of Services elsewhere.
func (d *Dataplane) addresses() map[netip.Prefix]bool {
	ours := map[netip.Prefix]bool{}
	for _, v6 := range []bool{false, true} {
		for _, p := range d.node.Pools[kubeproxy.ServiceRanges(v6)].Ranges {
			ours[p] = true
		}
	}
	ranges := maps.Clone(ours)
	have := [2]map[netip.Addr]bool{conntrack.LocalAddresses(false), conntrack.LocalAddresses(true)}
	for _, r := range d.rules {
		for front := range r.Fronts {
			if front.IsNodePort() || within(front.Addr, ranges) || have[0][front.Addr] || have[1][front.Addr] {
				continue
			}
			ours[netip.PrefixFrom(front.Addr, front.Addr.BitLen())] = true
		}
	}
	return ours
}

func within(a netip.Addr, ranges map[netip.Prefix]bool) bool {
	for p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Intact says whether the routes are there.
func (d *Dataplane) Intact() error { return d.routes.intact() }

// Changed is told of nothing: what others do to nftables concerns no socket.
func (d *Dataplane) Changed() <-chan struct{} { return nil }

// Close ends all connections.
func (d *Dataplane) Close() error {
	for _, s := range d.sockets {
		s.close()
	}
	return nil
}

// Remove deletes the routes of a name.
func Remove(name string) error {
	r := newRoutes(name)
	return errors.Join(r.read(), r.set(nil))
}
