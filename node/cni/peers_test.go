package cni

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(name string, ranges []string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func TestPeersOf(t *testing.T) {
	addr, pre := netip.MustParseAddr, netip.MustParsePrefix
	c := Config{NodeIPs: []netip.Addr{addr("10.0.0.1")}, PodCIDRs: []string{"10.42.0.0/24"}, ClusterCIDRs: []string{"10.42.0.0/16", "fd00:42::/32"}}
	got := c.peersOf([]*corev1.Node{
		node("self", []string{"10.42.0.0/24"}, "10.0.0.1"),
		node("z", []string{"10.42.2.0/24", "fd00:42:2::/64"}, "fd00::3", "10.0.0.3"),
		node("b", []string{"10.42.1.0/24"}, "10.0.0.2"),
		node("no range", nil, "10.0.0.4"),
		node("no address", []string{"10.42.4.0/24"}),
		node("other family", []string{"10.42.5.0/24"}, "fd00::6"),
		node("my address", []string{"10.42.6.0/24"}, "10.0.0.1"),
		node("bad", []string{"10.42"}, "10.0.0.7"),
	}, "self")
	want := []peer{
		{"b", []netip.Addr{addr("10.0.0.2")}, []netip.Prefix{pre("10.42.1.0/24")}},
		{"other family", []netip.Addr{addr("fd00::6")}, []netip.Prefix{pre("10.42.5.0/24")}},
		{"z", []netip.Addr{addr("fd00::3"), addr("10.0.0.3")}, []netip.Prefix{pre("10.42.2.0/24"), pre("fd00:42:2::/64")}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	for backend, want := range map[string][]way{
		VXLAN: {
			{pre("10.42.1.0/24"), addr("10.42.1.0"), "0e:6b:0a:2a:01:00", addr("10.0.0.2")},
			{pre("10.42.2.0/24"), addr("10.42.2.0"), "0e:6b:0a:2a:02:00", addr("10.0.0.3")},
			{pre("fd00:42:2::/64"), addr("fd00:42:2::"), "0e:6b:0a:2a:02:00", addr("10.0.0.3")},
		},
		HostGateway: {
			{dst: pre("10.42.1.0/24"), via: addr("10.0.0.2")},
			{dst: pre("10.42.2.0/24"), via: addr("10.0.0.3")},
			{dst: pre("fd00:42:2::/64"), via: addr("fd00::3")},
		},
	} {
		if ways := waysTo(got, backend, false); !reflect.DeepEqual(ways, want) {
			t.Errorf("%s: %v, want %v", backend, ways, want)
		}
	}
}

// Tunnels go between addresses of the family of this node's first one, and their ends
// have hardware addresses that no two nodes share.
func TestTunnelsOverIPv6(t *testing.T) {
	addr, pre := netip.MustParseAddr, netip.MustParsePrefix
	c := Config{NodeIPs: []netip.Addr{addr("fd00::1"), addr("10.0.0.1")}, PodCIDRs: []string{"fd00:42::/64"}, ClusterCIDRs: []string{"fd00:42::/56"}}
	got := waysTo(c.peersOf([]*corev1.Node{
		node("b", []string{"fd00:42:0:1::/64"}, "10.0.0.2", "fd00::2"),
		node("c", []string{"fd00:42:0:ff::/64"}, "fd00::3"),
		node("of IPv4 alone", []string{"fd00:42:0:4::/64"}, "10.0.0.4"),
	}, "self"), VXLAN, c.underlay().Is6())
	want := []way{
		{pre("fd00:42:0:1::/64"), addr("fd00:42:0:1::"), "0e:42:00:00:00:01", addr("fd00::2")},
		{pre("fd00:42:0:ff::/64"), addr("fd00:42:0:ff::"), "0e:42:00:00:00:ff", addr("fd00::3")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A node's own word gives it no traffic that is another's or the world's.
func TestPeersTakeNoRangeOfOthers(t *testing.T) {
	c := Config{NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, PodCIDRs: []string{"10.42.0.0/24"}, ClusterCIDRs: []string{"10.42.0.0/16"}}
	old, thief := node("old", []string{"10.42.1.0/24"}, "10.0.0.2"), node("a-thief", []string{"0.0.0.0/0", "10.0.0.0/24", "10.42.0.0/16", "10.42.0.0/25", "10.42.1.128/25", "10.42.9.0/24"}, "10.0.0.3")
	old.CreationTimestamp, thief.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	want := []peer{
		{"a-thief", []netip.Addr{netip.MustParseAddr("10.0.0.3")}, []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24")}},
		{"old", []netip.Addr{netip.MustParseAddr("10.0.0.2")}, []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}},
	}
	if got := c.peersOf([]*corev1.Node{thief, old}, "self"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A node writes its status often; only what changes a way is news.
func TestSame(t *testing.T) {
	a := node("a", []string{"10.42.1.0/24"}, "10.0.0.2")
	b := a.DeepCopy()
	b.ResourceVersion, b.Status.Conditions = "7", []corev1.NodeCondition{{Type: corev1.NodeReady}}
	if !same(a, b) {
		t.Error("a heartbeat is news")
	}
	b.Status.Addresses[0].Address = "10.0.0.3"
	if same(a, b) || same(a, node("a", nil, "10.0.0.2")) {
		t.Error("an address or a range is no news")
	}
}
