package announcer

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/loadbalancer/addresspool"
	"knarr/internal/informer"
)

// Namespace is where the Leases are, apart from all others: every node may write them.
const Namespace = "knarr-addresses"

// LeaseName is that of an address' Lease.
func LeaseName(a netip.Addr) string {
	return "a" + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// AddressOf is the address whose Lease has that name.
func AddressOf(name string) (netip.Addr, bool) {
	text, ok := strings.CutPrefix(name, "a")
	with := "."
	if strings.Count(text, "-") == 7 {
		with = ":"
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", with))
	return a, ok && err == nil && LeaseName(a) == name
}

// A front is an address that Services have of a pool.
type front struct {
	// candidates are the nodes that may answer for it, the preferred one first.
	candidates []string
	interfaces []string // none: chosen by the address
	silent     bool     // the network leads it here by itself
}

// A world is the objects that are followed, and the Leases that this node has written.
type world struct {
	pools, services, nodes, slices, leases cache.Store
	written                                map[string]*coordinationv1.Lease
}

// slim keeps of Services and EndpointSlices what says where they are.
func slim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		small := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}}
		small.Spec.Type, small.Spec.ExternalTrafficPolicy, small.Status = o.Spec.Type, o.Spec.ExternalTrafficPolicy, o.Status
		small.Status.Conditions = nil
		return small, nil
	case *discoveryv1.EndpointSlice:
		small := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
			Labels: map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]},
		}}
		on := map[string]bool{}
		for _, e := range o.Endpoints {
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				on[*e.NodeName] = true
			}
		}
		for _, node := range slices.Sorted(maps.Keys(on)) {
			small.Endpoints = append(small.Endpoints, discoveryv1.Endpoint{NodeName: &node})
		}
		return small, nil
	case *corev1.Node:
		o.Status.Images, o.Status.VolumesAttached, o.Status.VolumesInUse = nil, nil, nil
	}
	return informer.TrimMetadata(o)
}

// A spot is a pool with its ranges, made once a round.
type spot struct {
	ranges []addresspool.Range
	spec   addresspool.Spec
	nodes  labels.Selector
}

// fronts are the addresses of pools that Services have.
func (w *world) fronts() map[netip.Addr]front {
	var spots []spot
	for _, o := range w.pools.List() {
		p := o.(*addresspool.AddressPool)
		ranges, _ := p.Spec.Ranges()
		spots = append(spots, spot{ranges, p.Spec, labels.SelectorFromSet(p.Spec.NodeSelector)})
	}
	local := map[netip.Addr][]cache.ObjectName{} // the Services with that policy
	at := map[netip.Addr]*spot{}
	for _, o := range w.services.List() {
		s := o.(*corev1.Service)
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			a, err := netip.ParseAddr(in.IP)
			if err != nil {
				continue
			}
			i := slices.IndexFunc(spots, func(p spot) bool {
				return slices.ContainsFunc(p.ranges, func(r addresspool.Range) bool { return r.Contains(a) })
			})
			if i < 0 {
				continue
			}
			at[a] = &spots[i]
			if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				local[a] = append(local[a], cache.MetaObjectToName(s))
			}
		}
	}
	endpoints := w.endpoints(local)
	out := make(map[netip.Addr]front, len(at))
	for a, p := range at {
		out[a] = front{candidates: w.candidates(a, p, local[a], endpoints), interfaces: p.spec.Interfaces, silent: p.spec.Announce == "None"}
	}
	return out
}

// endpoints are the nodes with endpoints of Services with a Local policy.
func (w *world) endpoints(local map[netip.Addr][]cache.ObjectName) map[cache.ObjectName]map[string]bool {
	on := map[cache.ObjectName]map[string]bool{}
	for _, all := range local {
		for _, name := range all {
			on[name] = map[string]bool{}
		}
	}
	if len(on) == 0 {
		return on
	}
	for _, o := range w.slices.List() {
		s := o.(*discoveryv1.EndpointSlice)
		if nodes := on[cache.NewObjectName(s.Namespace, s.Labels[discoveryv1.LabelServiceName])]; nodes != nil {
			for _, e := range s.Endpoints {
				nodes[*e.NodeName] = true
			}
		}
	}
	return on
}

// candidates are the ready nodes that may answer for an address. Where Services with a
// Local policy share it, those with endpoints of most of them come first, and those with
// none not at all. Otherwise each address has an order of its own, so that addresses are
// spread, and few move when a node comes or goes.
func (w *world) candidates(a netip.Addr, p *spot, local []cache.ObjectName, endpoints map[cache.ObjectName]map[string]bool) []string {
	type ranked struct {
		name  string
		has   int
		score uint64
	}
	var all []ranked
	for _, o := range w.nodes.List() {
		n := o.(*corev1.Node)
		if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded || n.DeletionTimestamp != nil || !ready(n) || !p.nodes.Matches(labels.Set(n.Labels)) {
			continue
		}
		r := ranked{name: n.Name, score: score(a, n.Name)}
		for _, s := range local {
			if endpoints[s][n.Name] {
				r.has++
			}
		}
		if len(local) == 0 || r.has > 0 {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.has, a.has), cmp.Compare(b.score, a.score), cmp.Compare(a.name, b.name))
	})
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].name
	}
	return names
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func score(a netip.Addr, node string) uint64 {
	h := fnv.New64a()
	h.Write(a.AsSlice())
	h.Write([]byte(node))
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], h.Sum64())
	h.Write(b[:]) // FNV's last byte changes its high bits little
	return h.Sum64()
}

// lease is an address' Lease, as this node has written it if the watch has not come as
// far.
func (w *world) lease(a netip.Addr) *coordinationv1.Lease {
	name := LeaseName(a)
	o, _, _ := w.leases.GetByKey(Namespace + "/" + name) // a store's only error is its index's
	seen, _ := o.(*coordinationv1.Lease)
	own := w.written[name]
	if own != nil && (seen == nil || later(own.ResourceVersion, seen.ResourceVersion)) {
		return own
	}
	delete(w.written, name)
	return seen
}

// later compares resource versions, which are numbers.
func later(a, b string) bool {
	n, errA := strconv.ParseUint(a, 10, 64)
	m, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && n > m
}

// heirs is how many candidates look whether an address' holder lives.
const heirs = 3

// takes reports whether me is to take an address: if the holder is no candidate any more
// or dead, and so are all candidates before me.
func takes(me string, candidates []string, holder string, alive func(string) bool) bool {
	if slices.Contains(candidates, holder) && alive(holder) {
		return false
	}
	before := 0
	for _, c := range candidates {
		switch {
		case c == me:
			return before < heirs
		case c == holder:
		case alive(c):
			return false
		default:
			before++
		}
	}
	return false
}

// probed are the nodes whose life me must know of, and where their kubelets are.
func (r *round) probed(fronts map[netip.Addr]front, me string) map[string]string {
	names := map[string]bool{}
	for a, f := range fronts {
		at := slices.Index(f.candidates, me)
		holder := holderOf(r.lease(a))
		if at < 0 || holder == me || at > heirs {
			continue
		}
		if slices.Contains(f.candidates, holder) {
			names[holder] = true
		}
		for _, c := range f.candidates[:at] {
			names[c] = true
		}
	}
	found := map[string]string{}
	for name := range names {
		if o, ok, _ := r.nodes.GetByKey(name); ok { // a store's only error is its index's
			if at := kubeletOf(o.(*corev1.Node)); at != "" {
				found[name] = at
			}
		}
	}
	return found
}

func kubeletOf(n *corev1.Node) string {
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil && port > 0 {
			return net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))
		}
	}
	return ""
}
