package announcer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/loadbalancer/addresspool"
)

func TestTakes(t *testing.T) {
	for _, c := range []struct {
		name, me, candidates, holder, dead string
		want                               bool
	}{
		{"nobody holds it, and me is the first", "a", "a b c", "", "", true},
		{"nobody holds it, and another is before me", "b", "a b c", "", "", false},
		{"nobody holds it, and who is before me is dead", "b", "a b c", "", "a", true},
		{"its holder lives", "a", "a b c", "c", "", false},
		{"its holder is dead", "a", "a b c", "c", "c", true},
		{"its holder is dead, and another is before me", "b", "a b c", "c", "c", false},
		{"its holder is the first, and dead", "b", "a b c", "a", "a", true},
		{"its holder is no candidate any more", "a", "a b", "c", "", true},
		{"me is no candidate", "z", "a b", "", "a b", false},
		{"all before me are dead", "d", "a b c d", "a", "a b c", true},
		{"too many before me are dead to be believed", "f", "a b c d e f", "a", "a b c d e", false},
	} {
		alive := func(name string) bool { return !slices.Contains(strings.Fields(c.dead), name) }
		if got := takes(c.me, strings.Fields(c.candidates), c.holder, alive); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// Whoever is dead, one node at most takes an address, and one does if a heir lives.
func TestOneTakes(t *testing.T) {
	nodes := strings.Fields("a b c d e")
	for dead := range 1 << len(nodes) {
		for _, holder := range append(nodes, "", "gone") {
			alive := func(name string) bool { i := slices.Index(nodes, name); return i < 0 || dead>>i&1 == 0 }
			var take []string
			for _, me := range nodes {
				if alive(me) && me != holder && takes(me, nodes, holder, alive) {
					take = append(take, me)
				}
			}
			held := slices.Contains(nodes, holder) && alive(holder)
			heir := slices.ContainsFunc(nodes[:heirs], alive)
			if len(take) > 1 || held == (len(take) == 1) && heir {
				t.Errorf("dead %05b, holder %q: %v", dead, holder, take)
			}
		}
	}
}

func TestLeaseName(t *testing.T) {
	for _, text := range []string{"192.0.2.7", "2001:db8::1", "::1"} {
		a := netip.MustParseAddr(text)
		if back, ok := AddressOf(LeaseName(a)); !ok || back != a {
			t.Errorf("%s: %s, %v %t", text, LeaseName(a), back, ok)
		}
	}
	for _, name := range []string{"", "a", "knarr", "a1-2-3", "a1-2-3-4-5", "a2001-db8--1"} {
		if a, ok := AddressOf(name); ok {
			t.Errorf("%q: %v", name, a)
		}
	}
}

func newWorld() world {
	store := func() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }
	return world{store(), store(), store(), store(), store(), map[string]*coordinationv1.Lease{}}
}

func addAll(t *testing.T, to cache.Store, objects ...any) {
	t.Helper()
	for _, o := range objects {
		if err := to.Add(o); err != nil {
			t.Fatal(err)
		}
	}
}

func node(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func balanced(name, address string, local bool) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	if local {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}, {Hostname: "not an address"}}
	return s
}

func endpointsOn(service string, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	for _, n := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &n})
	}
	return s
}

func TestFronts(t *testing.T) {
	w := newWorld()
	addAll(t, w.pools, &addresspool.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: addresspool.Spec{Addresses: []string{"192.0.2.0/24"}, NodeSelector: map[string]string{"edge": "yes"}}})
	edge := map[string]string{"edge": "yes"}
	left := node("n4", edge)
	left.Status.Conditions = nil
	addAll(t, w.nodes, node("n1", edge), node("n2", edge), node("n3", nil), left, node("n5", map[string]string{"edge": "yes", corev1.LabelNodeExcludeBalancers: ""}))
	addAll(t, w.services, balanced("a", "192.0.2.1", false), balanced("b", "192.0.2.2", true), balanced("c", "192.0.2.3", true), balanced("d", "192.0.2.3", true),
		balanced("e", "10.0.0.1", false), balanced("none", "192.0.2.9", true))
	addAll(t, w.slices, endpointsOn("b", "n2", "n3"), endpointsOn("c", "n1", "n2"), endpointsOn("d", "n1"))
	got := w.fronts()
	first := got[netip.MustParseAddr("192.0.2.1")].candidates
	slices.Sort(first)
	for address, want := range map[string]string{"192.0.2.1": "[n1 n2]", "192.0.2.2": "[n2]", "192.0.2.3": "[n1 n2]", "192.0.2.9": "[]"} {
		if f := got[netip.MustParseAddr(address)]; fmt.Sprint(f.candidates) != want {
			t.Errorf("%s: %v, want %s", address, f.candidates, want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d fronts", len(got))
	}
}

// Each node is the first for its part of the addresses, and one that goes moves its own
// alone.
func TestSpread(t *testing.T) {
	w := newWorld()
	addAll(t, w.nodes, node("n1", nil), node("n2", nil), node("n3", nil))
	p := &spot{nodes: labels.Everything()}
	count := map[string]int{}
	before := map[netip.Addr]string{}
	a := netip.MustParseAddr("192.0.2.0")
	for range 900 {
		c := w.candidates(a, p, nil, nil)
		count[c[0]]++
		before[a] = c[0]
		a = a.Next()
	}
	for name, n := range count {
		if n < 200 || n > 400 {
			t.Errorf("%s is first for %d of 900", name, n)
		}
	}
	if err := w.nodes.Delete(node("n2", nil)); err != nil {
		t.Fatal(err)
	}
	for a, was := range before {
		if now := w.candidates(a, p, nil, nil)[0]; was != "n2" && now != was {
			t.Errorf("%s moves from %s to %s", a, was, now)
		}
	}
}

// What this node has written counts until the watch has come as far.
func TestOwnLease(t *testing.T) {
	w := newWorld()
	a := netip.MustParseAddr("192.0.2.1")
	lease := func(version, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: LeaseName(a), ResourceVersion: version}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	addAll(t, w.leases, lease("9", "old"))
	w.written[LeaseName(a)] = lease("10", "me")
	if got := holderOf(w.lease(a)); got != "me" {
		t.Error(got)
	}
	addAll(t, w.leases, lease("11", "other"))
	if got := holderOf(w.lease(a)); got != "other" || len(w.written) > 0 {
		t.Error(got, w.written)
	}
}
