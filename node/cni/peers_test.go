package cni

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	mdnetlink "github.com/mdlayher/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
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
		{"b", []netip.Addr{addr("10.0.0.2")}, []netip.Prefix{pre("10.42.1.0/24")}, wireguardKey{}},
		{"other family", []netip.Addr{addr("fd00::6")}, []netip.Prefix{pre("10.42.5.0/24")}, wireguardKey{}},
		{"z", []netip.Addr{addr("fd00::3"), addr("10.0.0.3")}, []netip.Prefix{pre("10.42.2.0/24"), pre("fd00:42:2::/64")}, wireguardKey{}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	near := func(a netip.Addr) bool { return a == addr("10.0.0.2") || a == addr("fd00::3") }
	for backend, want := range map[string][]way{
		VXLAN: {
			{pre("10.42.1.0/24"), addr("10.42.1.0"), "0e:6b:0a:2a:01:00", addr("10.0.0.2")},
			{pre("10.42.2.0/24"), addr("10.42.2.0"), "0e:6b:0a:2a:02:00", addr("10.0.0.3")},
			{pre("fd00:42:2::/64"), addr("fd00:42:2::"), "0e:6b:0a:2a:02:00", addr("10.0.0.3")},
		},
		DirectVXLAN: { // b is near, and so is z by IPv6
			{dst: pre("10.42.1.0/24"), via: addr("10.0.0.2")},
			{pre("10.42.2.0/24"), addr("10.42.2.0"), "0e:6b:0a:2a:02:00", addr("10.0.0.3")},
			{dst: pre("fd00:42:2::/64"), via: addr("fd00::3")},
		},
		HostGateway: {
			{dst: pre("10.42.1.0/24"), via: addr("10.0.0.2")},
			{dst: pre("10.42.2.0/24"), via: addr("10.0.0.3")},
			{dst: pre("fd00:42:2::/64"), via: addr("fd00::3")},
		},
	} {
		if ways := waysTo(got, backend, false, near); !reflect.DeepEqual(ways, want) {
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
	}, "self"), VXLAN, c.underlay().Is6(), nil)
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
		{"a-thief", []netip.Addr{netip.MustParseAddr("10.0.0.3")}, []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24")}, wireguardKey{}},
		{"old", []netip.Addr{netip.MustParseAddr("10.0.0.2")}, []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}, wireguardKey{}},
	}
	if got := c.peersOf([]*corev1.Node{thief, old}, "self"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A node whose range gives its tunnel's end the address of another's, by a length that its
// node chose, is left out: what is for the other would go to it.
func TestPeersTakeNoEndOfOthers(t *testing.T) {
	c := Config{Backend: VXLAN, NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, PodCIDRs: []string{"10.42.0.0/24", "fd00:42::/64"},
		ClusterCIDRs: []string{"10.42.0.0/16", "fd00:42::/56"}}
	old := node("old", []string{"10.42.5.0/24", "fd00:42:0:5::/64"}, "10.0.0.2")
	thief, own := node("thief", []string{"fd00:42:0:6b:a2a:500::/96", "10.42.9.0/24"}, "10.0.0.3"), node("thief-of-own", []string{"fd00:42:0:6b:a2a:0::/96", "10.42.8.0/24"}, "10.0.0.4")
	old.CreationTimestamp, thief.CreationTimestamp, own.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0), metav1.Unix(3, 0)
	if hardware(netip.MustParsePrefix(thief.Spec.PodCIDRs[0])).String() != hardware(netip.MustParsePrefix(old.Spec.PodCIDRs[0])).String() {
		t.Fatal("these are not the same")
	}
	if got := c.peersOf([]*corev1.Node{thief, own, old}, "self"); len(got) != 1 || got[0].name != "old" {
		t.Errorf("got %v", got)
	}
}

// A node without a key, or with that of another, has no encrypted way.
func TestWireguardPeers(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	c := Config{Backend: WireGuard, NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, PodCIDRs: []string{"10.42.0.0/24"}, ClusterCIDRs: []string{"10.42.0.0/16"}}
	var nodes []*corev1.Node
	for i, k := range []string{key, key, "", "bad", base64.StdEncoding.EncodeToString(make([]byte, 32)), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{8}, 31))} {
		n := node(fmt.Sprint("n", i), []string{fmt.Sprintf("10.42.%d.0/24", i+1)}, fmt.Sprintf("10.0.0.%d", i+2))
		n.Annotations = map[string]string{publicKeyAnnotation: k}
		nodes = append(nodes, n)
	}
	peers := c.peersOf(nodes, "self")
	dropStolenKeys(peers, keyOwners(nodes, nil))
	got := wireguardPeers(peers, false)
	if len(got) != 1 || got[0].endpoint != netip.MustParseAddrPort("10.0.0.2:51820") || got[0].ranges[0] != netip.MustParsePrefix("10.42.1.0/24") {
		t.Errorf("%v", got)
	}
	if same(nodes[0], nodes[2]) {
		t.Error("a key is no news")
	}
	slimmed, err := slim(nodes[0])
	if err != nil || slimmed.(*corev1.Node).Annotations[publicKeyAnnotation] != key {
		t.Errorf("the key is not kept: %v, %v", slimmed, err)
	}
}

// TestKeyOwners: a key stays the node's that had it first, also where an older node of a
// name before its own writes it into its Node; who has given it up has it no longer.
func TestKeyOwners(t *testing.T) {
	key := wireguardKey(bytes.Repeat([]byte{7}, 32))
	with := func(name string, made int64, key wireguardKey) *corev1.Node {
		n := node(name, nil)
		n.CreationTimestamp = metav1.Unix(made, 0)
		n.Annotations = map[string]string{publicKeyAnnotation: base64.StdEncoding.EncodeToString(key[:])}
		return n
	}
	victim, young, old := with("victim", 2, key), with("a-young-thief", 3, key), with("an-old-thief", 1, key)
	for name, c := range map[string]struct {
		nodes  []*corev1.Node
		before string
		want   string
	}{
		"a younger one":                   {[]*corev1.Node{young, victim}, "", "victim"},
		"an older one":                    {[]*corev1.Node{old, victim, young}, "victim", "victim"},
		"an older one, at a start of all": {[]*corev1.Node{old, victim}, "", "an-old-thief"},
		"who had it is gone":              {[]*corev1.Node{young}, "victim", "a-young-thief"},
		"who had it has another":          {[]*corev1.Node{young, with("victim", 2, wireguardKey{1})}, "victim", "a-young-thief"},
		"of none that has a key":          {[]*corev1.Node{with("victim", 2, wireguardKey{})}, "victim", ""},
	} {
		if got := keyOwners(c.nodes, map[wireguardKey]string{key: c.before})[key]; got != c.want {
			t.Errorf("%s: %q has it, want %q", name, got, c.want)
		}
	}
}

// TestKeptOwners: what the kernel holds when the process starts says whose a key is, so that an
// older node that has taken it meanwhile gets nothing; a range that is nobody's now says nothing.
func TestKeptOwners(t *testing.T) {
	c := Config{Backend: WireGuard, NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, PodCIDRs: []string{"10.42.0.0/24"}, ClusterCIDRs: []string{"10.42.0.0/16"}}
	key := wireguardKey(bytes.Repeat([]byte{7}, 32))
	var nodes []*corev1.Node
	for i, name := range []string{"an-old-thief", "victim"} {
		n := node(name, []string{fmt.Sprintf("10.42.%d.0/24", i+1)}, fmt.Sprintf("10.0.0.%d", i+2))
		n.CreationTimestamp = metav1.Unix(int64(i), 0)
		n.Annotations = map[string]string{publicKeyAnnotation: base64.StdEncoding.EncodeToString(key[:])}
		nodes = append(nodes, n)
	}
	for name, k := range map[string]struct {
		held []wireguardPeer
		want string
	}{
		"the victim's": {[]wireguardPeer{{key: wireguardKey{1}, ranges: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}},
			{key: key, ranges: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24")}}}, "victim"},
		"in several parts":    {[]wireguardPeer{{key: key}, {key: key, ranges: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24")}}, {key: key}}, "victim"},
		"a range that nobody": {[]wireguardPeer{{key: key, ranges: []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24")}}}, "an-old-thief"},
		"nothing":             {nil, "an-old-thief"},
	} {
		peers := c.peersOf(nodes, "self")
		owners := keyOwners(nodes, keptOwners(k.held, peers))
		dropStolenKeys(peers, owners)
		all := wireguardPeers(peers, false)
		if owners[key] != k.want || len(all) != 1 || (k.want == "victim") != (all[0].endpoint.Addr() == netip.MustParseAddr("10.0.0.3")) {
			t.Errorf("%s: %q has it, want %q; peers %v", name, owners[key], k.want, all)
		}
	}
}

// TestDecodeWireguard: the kernel's answer says keys and ranges of both families, and one that
// is cut off or has too much is an error or left out, no panic.
func TestDecodeWireguard(t *testing.T) {
	want := []wireguardPeer{
		{key: wireguardKey{1}, ranges: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24"), netip.MustParsePrefix("fd00:42:0:1::/64")}},
		{key: wireguardKey{2}},
	}
	ae := mdnetlink.NewAttributeEncoder()
	ae.Uint32(wgDeviceIfindex, 7)
	ae.Nested(wgDevicePeers, func(list *mdnetlink.AttributeEncoder) error {
		for i, p := range want {
			p.endpoint = netip.MustParseAddrPort("10.0.0.2:51820")
			list.Nested(uint16(i), p.encode)
		}
		list.Nested(2, func(odd *mdnetlink.AttributeEncoder) error {
			odd.Bytes(wgPeerPublicKey, []byte("short"))
			odd.Nested(wgPeerAllowedIPs, func(ips *mdnetlink.AttributeEncoder) error {
				ips.Nested(0, func(ip *mdnetlink.AttributeEncoder) error {
					ip.Bytes(wgAllowedIP, []byte{10})
					ip.Uint8(wgAllowedMask, 200)
					return nil
				})
				return nil
			})
			return nil
		})
		return nil
	})
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeWireguard(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for n := range len(b) {
		_, _ = decodeWireguard(b[:n])
	}
}

// TestPrivateKey: it is made once, and for nobody else to read.
func TestPrivateKey(t *testing.T) {
	dir := t.TempDir()
	one, err := privateKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := privateKey(dir)
	if err != nil || !again.Equal(one) {
		t.Errorf("another key the second time: %v", err)
	}
	if st, err := os.Stat(filepath.Join(dir, "wireguard.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestSocketAddress(t *testing.T) {
	for at, want := range map[string]string{"192.0.2.1:51820": "\x02\x00\xca\x6c\xc0\x00\x02\x01", "[2001:db8::1]:51820": "\x0a\x00\xca\x6c\x00\x00\x00\x00\x20\x01\x0d\xb8"} {
		if got := string(socketAddress(netip.MustParseAddrPort(at))); !strings.HasPrefix(got, want) {
			t.Errorf("%s: % x", at, got)
		}
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

// TestPublishKey: a node's key is in its Node, also after somebody has taken it away, and
// is not written again without need.
func TestPublishKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		nodes := api.Client(t).CoreV1().Nodes()
		n, err := nodes.Create(t.Context(), node("self", nil, "10.0.0.1"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPeers(Config{Backend: WireGuard, StateDir: t.TempDir()}, api.Config(), api.Config(), "self")
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"at first", "taken away"} {
			if err := p.publishKey(t.Context(), []*corev1.Node{n}); err != nil {
				t.Fatal(err)
			}
			have, err := nodes.Get(t.Context(), "self", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := publicKey(have); !ok {
				t.Errorf("%s: there is no key in %v", what, have.Annotations)
			}
			if err := p.publishKey(t.Context(), []*corev1.Node{have}); err != nil {
				t.Fatal(err)
			}
			again, err := nodes.Get(t.Context(), "self", metav1.GetOptions{})
			if err != nil || again.ResourceVersion != have.ResourceVersion {
				t.Errorf("%s: written again, %v", what, err)
			}
		}
	})
}
