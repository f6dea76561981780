package cni

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
	"knarr/node/cni/network"
)

// A host is a network namespace with a thread in it.
type host struct {
	config Config
	tid    int
	work   chan func()
}

// do runs f in the namespace.
func (h *host) do(f func()) {
	done := make(chan struct{})
	h.work <- func() { defer close(done); f() }
	<-done
}

// families are the addresses of a cluster's nodes, by the order of its families.
var families = map[string][]string{"IPv4": {"4"}, "IPv6": {"6"}, "IPv4 first": {"4", "6"}, "IPv6 first": {"6", "4"}}

// newHost makes one that is node number n, and lasts as long as the test.
func newHost(t *testing.T, n int, backend, family string) *host {
	t.Helper()
	h := &host{work: make(chan func())}
	h.config = Config{Dir: t.TempDir(), StateDir: t.TempDir(), Backend: backend, NetworkID: 4711}.withDefaults()
	h.config.ClusterCIDRs = nil
	for _, f := range families[family] {
		host, pods, all := fmt.Sprintf("192.0.2.%d", n), fmt.Sprintf("10.42.%d.0/24", n), "10.42.0.0/16"
		if f == "6" {
			host, pods, all = fmt.Sprintf("2001:db8::%d", n), fmt.Sprintf("fd00:42:0:%d::/64", n), "fd00:42::/56"
		}
		h.config.NodeIPs = append(h.config.NodeIPs, netip.MustParseAddr(host))
		h.config.PodCIDRs, h.config.ClusterCIDRs = append(h.config.PodCIDRs, pods), append(h.config.ClusterCIDRs, all)
	}
	own, err := h.config.ownRanges()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the namespace ends with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		h.tid = unix.Gettid()
		if err == nil {
			_, err = network.EnsureBridge(&network.Conf{Bridge: h.config.Bridge, PodCIDRs: own})
		}
		if err == nil {
			err = errors.Join(os.WriteFile(forward4, []byte("1"), 0o644), os.WriteFile(forward6, []byte("1"), 0o644))
		}
		started <- err
		for f := range h.work {
			f()
		}
	}()
	if err := <-started; err != nil {
		need.Skip(t, "needs network namespaces that can be written to: run where /proc/sys is writable: ", err)
	}
	t.Cleanup(func() { close(h.work) })
	return h
}

func (h *host) peer(name string) peer {
	p, _ := h.config.ownRanges()
	all := peer{name: name, hosts: h.config.NodeIPs, ranges: p}
	if h.config.Backend == WireGuard {
		key, err := privateKey(h.config.StateDir)
		if err != nil {
			panic(err)
		}
		all.key = wireguardKey(key.PublicKey().Bytes())
	}
	return all
}

// join lays a cable between two hosts.
func join(t *testing.T, a, b *host) {
	t.Helper()
	var err error
	a.do(func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth0"
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsPid(b.tid)
		err = netlink.LinkAdd(veth)
	})
	for _, h := range []*host{a, b} {
		h.do(func() {
			link, lerr := netlink.LinkByName("eth0")
			if err != nil || lerr != nil {
				err = fmt.Errorf("%w, %w", err, lerr)
				return
			}
			for _, ip := range h.config.NodeIPs {
				bits, flags := 24, 0
				if ip.Is6() {
					bits, flags = 64, unix.IFA_F_NODAD
				}
				err = errors.Join(err, netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(ip, bits)), Flags: flags}))
			}
			err = errors.Join(err, netlink.LinkSetUp(link))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reach asks the address of b's bridge from a, of each family, and gives the addresses
// that b saw.
func reach(t *testing.T, a, b *host) (seen []string, err error) {
	t.Helper()
	for _, r := range b.peer("").ranges {
		one, rerr := reachAt(t, a, b, r.Addr().Next())
		seen, err = append(seen, one), errors.Join(err, rerr)
	}
	return seen, err
}

// listen takes a copy of all that passes a host's cable until what it returns is called.
func (h *host) listen(t *testing.T) (heard func() string) {
	t.Helper()
	var s int
	var err error
	h.do(func() {
		var link netlink.Link
		if link, err = netlink.LinkByName("eth0"); err != nil {
			return
		}
		const every = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // as the network orders bytes
		if s, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, every); err == nil {
			err = unix.Bind(s, &unix.SockaddrLinklayer{Protocol: every, Ifindex: link.Attrs().Index})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		defer unix.Close(s)
		var all []byte
		for b := make([]byte, 1<<16); ; {
			n, _, err := unix.Recvfrom(s, b, unix.MSG_DONTWAIT)
			if err != nil {
				return string(all)
			}
			all = append(all, b[:n]...)
		}
	}
}

// reaches is reach, again if need be: a neighbour's answer may be lost while its link comes
// up, and the kernel asks once a second.
func reaches(t *testing.T, a, b *host) (seen []string, err error) {
	t.Helper()
	for range 10 {
		if seen, err = reach(t, a, b); err == nil {
			break
		}
	}
	return seen, err
}

func reachAt(t *testing.T, a, b *host, gateway netip.Addr) (seen string, err error) {
	t.Helper()
	var l net.Listener
	b.do(func() { l, err = net.Listen("tcp", netip.AddrPortFrom(gateway, 0).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	var c net.Conn
	a.do(func() { c, err = (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", l.Addr().String()) })
	if err != nil {
		return "", err
	}
	defer c.Close()
	got, err := io.ReadAll(c)
	return string(got), err
}

// held is what a host's kernel holds of others: routes, the tunnel and its neighbours.
func (h *host) held() (all string) {
	h.do(func() {
		routes, _ := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			all += r.Dst.String() + " "
		}
		link, err := netlink.LinkByName(h.config.Tunnel)
		if err != nil {
			return
		}
		all += "mtu " + fmt.Sprint(link.Attrs().MTU) + " "
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			list, _ := netlink.NeighList(link.Attrs().Index, family)
			for _, n := range list {
				if n.State&netlink.NUD_PERMANENT != 0 {
					all += n.IP.String() + " "
				}
			}
		}
	})
	return all
}

// needWireguard skips the test on a kernel that has none.
func (h *host) needWireguard(t *testing.T) {
	t.Helper()
	var err error
	h.do(func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe"
		if err = netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err == nil {
			err = removeLink("probe")
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no WireGuard; make vm has one")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWays(t *testing.T) {
	need.Root(t)
	testWays(t, []waysCase{
		{VXLAN, "IPv4", "mtu 1450", []string{"10.42.1.0"}},
		{VXLAN, "IPv6", "mtu 1430", []string{"fd00:42:0:1::"}},
		{VXLAN, "IPv4 first", "mtu 1450", []string{"10.42.1.0", "fd00:42:0:1::"}},
		{VXLAN, "IPv6 first", "mtu 1430", []string{"fd00:42:0:1::", "10.42.1.0"}},
		{DirectVXLAN, "IPv4", "mtu 1450", []string{"192.0.2.1"}},
		{DirectVXLAN, "IPv6", "mtu 1430", []string{"2001:db8::1"}},
		{DirectVXLAN, "IPv6 first", "mtu 1430", []string{"2001:db8::1", "192.0.2.1"}},
		{HostGateway, "IPv4", "", []string{"192.0.2.1"}},
		{HostGateway, "IPv6", "", []string{"2001:db8::1"}},
		{HostGateway, "IPv4 first", "", []string{"192.0.2.1", "2001:db8::1"}},
	})
}

// TestWireguardWays is the same through an encrypted tunnel.
func TestWireguardWays(t *testing.T) {
	need.Root(t)
	newHost(t, 9, WireGuard, "IPv4").needWireguard(t)
	testWays(t, []waysCase{
		{WireGuard, "IPv4", "mtu 1420", []string{"10.42.1.0"}},
		{WireGuard, "IPv6", "mtu 1420", []string{"fd00:42:0:1::"}},
		{WireGuard, "IPv4 first", "mtu 1420", []string{"10.42.1.0", "fd00:42:0:1::"}},
	})
}

// TestKeyStaysAtRestart: a process that has just started learns from the kernel whose a key is,
// before an older node that has written it into its Node meanwhile gets what is encrypted for it.
func TestKeyStaysAtRestart(t *testing.T) {
	need.Root(t)
	a, b, thief := newHost(t, 1, WireGuard, "IPv4"), newHost(t, 2, WireGuard, "IPv4"), newHost(t, 3, WireGuard, "IPv4")
	a.needWireguard(t)
	join(t, a, b)
	stolen := b.peer("b").key
	var nodes []*corev1.Node
	for made, h := range []*host{thief, b} {
		n := node([]string{"thief", "b"}[made], h.config.PodCIDRs, h.config.NodeIPs[0].String())
		n.CreationTimestamp = metav1.Unix(int64(made), 0)
		nodes = append(nodes, n)
	}
	say := func(n *corev1.Node) {
		n.Annotations = map[string]string{publicKeyAnnotation: base64.StdEncoding.EncodeToString(stolen[:])}
	}
	start := func() (all []wireguardPeer) {
		t.Helper()
		var err error
		a.do(func() {
			if err = (&Peers{cfg: a.config, node: "a"}).apply(nodes); err == nil {
				all, err = wireguardOf(a.config.Tunnel)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := []wireguardPeer{{key: stolen, ranges: b.peer("b").ranges}}
	say(nodes[1])
	first := start()
	say(nodes[0])
	if again := start(); !reflect.DeepEqual(first, want) || !reflect.DeepEqual(again, want) {
		t.Errorf("the kernel has %v, after a restart %v, want %v", first, again, want)
	}
}

type waysCase struct {
	backend, family, mtu string
	seen                 []string // the addresses of host a that host b sees
}

func testWays(t *testing.T, cases []waysCase) {
	for _, c := range cases {
		t.Run(c.backend+" "+c.family, func(t *testing.T) {
			a, b, gone := newHost(t, 1, c.backend, c.family), newHost(t, 2, c.backend, c.family), newHost(t, 3, c.backend, c.family)
			join(t, a, b)
			away := gone.peer("away")
			apply := func(h *host, peers ...peer) {
				t.Helper()
				var err error
				h.do(func() { err = applyWays(h.config, peers) })
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := reach(t, a, b); err == nil {
				t.Fatal("reached without a way")
			}
			for range 2 { // again is no error
				apply(a, b.peer("b"), away)
				apply(b, a.peer("a"))
			}
			wire := a.listen(t)
			if seen, err := reaches(t, a, b); err != nil || !slices.Equal(seen, c.seen) {
				t.Errorf("b saw %q, %v, want %s", seen, err, c.seen)
			}
			if open := strings.Contains(wire(), c.seen[0]); open == (c.backend == WireGuard) {
				t.Errorf("what b says can be read on the wire: %t", open)
			}
			all := func(held string) (n int) {
				for _, r := range away.ranges {
					n += strings.Count(held, r.String())
				}
				return n
			}
			if got := a.held(); all(got) != len(away.ranges) || !strings.Contains(got, c.mtu) {
				t.Errorf("with two peers: %s", got)
			}
			apply(a, b.peer("b")) // one is gone
			if got := a.held(); all(got) > 0 || strings.Contains(got, away.hosts[0].String()+" ") {
				t.Errorf("with one peer: %s", got)
			}
			if _, err := reaches(t, a, b); err != nil {
				t.Error(err)
			}
			apply(a) // and so is the last
			if got := a.held(); got != "" {
				t.Errorf("with no peer: %s", got)
			}
			apply(a, b.peer("b"))
			var err error
			a.do(func() { err = removeWays(a.config) })
			if got := a.held(); got != "" || err != nil {
				t.Errorf("removed: %s, %v", got, err)
			}
		})
	}
}

// A node that is not on a link of this one needs the tunnel.
func TestHostGatewayBehindRouter(t *testing.T) {
	need.Root(t)
	a, b := newHost(t, 1, HostGateway, "IPv4"), newHost(t, 2, HostGateway, "IPv4")
	join(t, a, b)
	var err error
	a.do(func() {
		link, _ := netlink.LinkByName("eth0")
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipnet(netip.MustParsePrefix("198.51.100.0/24")), Gw: b.config.underlay().AsSlice()})
	})
	if err != nil {
		t.Fatal(err)
	}
	far := peer{name: "far", hosts: []netip.Addr{netip.MustParseAddr("198.51.100.7")}, ranges: []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24")}}
	a.do(func() { err = applyWays(a.config, []peer{far}) })
	if err == nil || !strings.Contains(err.Error(), "behind the router 192.0.2.2; with nodes that share no link start the server with --flannel-backend=vxlan") {
		t.Errorf("%v", err)
	}
}
