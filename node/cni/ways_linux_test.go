package cni

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// newHost makes one that is node number n, and lasts as long as the test.
func newHost(t *testing.T, n int, backend string) *host {
	t.Helper()
	h := &host{work: make(chan func())}
	pods := netip.MustParsePrefix(fmt.Sprintf("10.42.%d.0/24", n))
	h.config = Config{
		Dir: t.TempDir(), StateDir: t.TempDir(), Backend: backend, NodeIP: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)),
		PodCIDRs: []string{pods.String()}, ClusterCIDRs: []string{"10.42.0.0/16"}, NetworkID: 4711,
	}.withDefaults()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the namespace ends with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		h.tid = unix.Gettid()
		if err == nil {
			_, err = network.EnsureBridge(&network.Conf{Bridge: h.config.Bridge, PodCIDRs: []netip.Prefix{pods}})
		}
		if err == nil {
			err = os.WriteFile(forward4, []byte("1"), 0o644)
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
	return peer{name, h.config.NodeIP, p}
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
			addr := &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(h.config.NodeIP, 24))}
			if err = netlink.AddrAdd(link, addr); err == nil {
				err = netlink.LinkSetUp(link)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reach asks the address of b's bridge from a, and gives the address that b saw.
func reach(t *testing.T, a, b *host) (seen string, err error) {
	t.Helper()
	var l net.Listener
	gateway := b.peer("").ranges[0].Addr().Next().String()
	b.do(func() { l, err = net.Listen("tcp", net.JoinHostPort(gateway, "0")) })
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
	a.do(func() { c, err = (&net.Dialer{Timeout: 2 * time.Second}).Dial("tcp", l.Addr().String()) })
	if err != nil {
		return "", err
	}
	defer c.Close()
	got, err := io.ReadAll(c)
	return string(got), err
}

func TestWays(t *testing.T) {
	need.Root(t)
	for _, c := range []struct{ backend, seen string }{{VXLAN, "10.42.1.0"}, {HostGateway, "192.0.2.1"}} {
		t.Run(c.backend, func(t *testing.T) {
			a, b := newHost(t, 1, c.backend), newHost(t, 2, c.backend)
			join(t, a, b)
			away := peer{"away", netip.MustParseAddr("192.0.2.3"), []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24")}}
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
			if seen, err := reach(t, a, b); err != nil || seen != c.seen {
				t.Errorf("b saw %q, %v, want %s", seen, err, c.seen)
			}
			held := func() (all string) {
				a.do(func() {
					routes, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
					for _, r := range routes {
						all += r.Dst.String() + " "
					}
					if link, err := netlink.LinkByName(a.config.Tunnel); err == nil {
						all += "mtu " + fmt.Sprint(link.Attrs().MTU) + " "
						neighbours, _ := netlink.NeighList(link.Attrs().Index, unix.AF_INET)
						for _, n := range neighbours {
							all += n.IP.String() + " "
						}
						ends, _ := netlink.NeighList(link.Attrs().Index, unix.AF_BRIDGE)
						for _, n := range ends {
							all += n.IP.String() + " "
						}
					}
				})
				return all
			}
			if got := held(); strings.Count(got, "10.42.3.0") == 0 || c.backend == VXLAN && !strings.Contains(got, "mtu 1450") {
				t.Errorf("with two peers: %s", got)
			}
			apply(a, b.peer("b")) // one is gone
			if got := held(); strings.Contains(got, "10.42.3.0") || strings.Contains(got, "192.0.2.3") {
				t.Errorf("with one peer: %s", got)
			}
			if _, err := reach(t, a, b); err != nil {
				t.Error(err)
			}
			apply(a) // and so is the last
			if got := held(); got != "" {
				t.Errorf("with no peer: %s", got)
			}
			apply(a, b.peer("b"))
			var err error
			a.do(func() { err = removeWays(a.config) })
			if got := held(); got != "" || err != nil {
				t.Errorf("removed: %s, %v", got, err)
			}
		})
	}
}

// A node that is not on a link of this one needs the tunnel.
func TestHostGatewayBehindRouter(t *testing.T) {
	need.Root(t)
	a, b := newHost(t, 1, HostGateway), newHost(t, 2, HostGateway)
	join(t, a, b)
	var err error
	a.do(func() {
		link, _ := netlink.LinkByName("eth0")
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipnet(netip.MustParsePrefix("198.51.100.0/24")), Gw: b.config.NodeIP.AsSlice()})
	})
	if err != nil {
		t.Fatal(err)
	}
	far := peer{"far", netip.MustParseAddr("198.51.100.7"), []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24")}}
	a.do(func() { err = applyWays(a.config, []peer{far}) })
	if err == nil || !strings.Contains(err.Error(), "behind the router 192.0.2.2; with nodes that share no link start the server with --flannel-backend=vxlan") {
		t.Errorf("%v", err)
	}
}
