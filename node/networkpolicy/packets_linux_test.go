package networkpolicy

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
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/need"
	"knarr/internal/run"
	"knarr/internal/sctptest"
)

// A segment is a node with pods, as the pod network makes them: each has its
// address alone and reaches everything by the bridge's.
type segment struct {
	t    testing.TB
	node netns.NsHandle
	pods map[string]netns.NsHandle
	link netlink.Link
}

const gateway4, gateway6 = "10.42.0.1", "fd42::1"

// newSegment puts the rest of the test into a network namespace of its own.
func newSegment(t testing.TB) *segment {
	need.Root(t)
	runtime.LockOSThread() // never unlocked: the thread dies with its goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	node, err := netns.Get()
	must(t, err)
	t.Cleanup(func() { node.Close() })
	s := &segment{t: t, node: node, pods: map[string]netns.NsHandle{}}
	must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	up(t, "lo")
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/br0/accept_dad", []byte("0"), 0o644))
	s.link = up(t, "br0")
	for _, a := range []string{gateway4 + "/24", gateway6 + "/64"} {
		addAddress(t, s.link, a)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func up(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetUp(l))
	return l
}

func addAddress(t testing.TB, l netlink.Link, s string) {
	t.Helper()
	a, err := netlink.ParseAddr(s)
	must(t, err)
	a.Flags = unix.IFA_F_NODAD
	must(t, netlink.AddrAdd(l, a))
}

// attach adds a pod with these addresses, which serves TCP and UDP on ports 80
// and 81.
func (s *segment) attach(name string, addrs ...string) {
	s.t.Helper()
	ns, err := netns.New() // and this thread is in it
	must(s.t, err)
	s.t.Cleanup(func() { ns.Close() })
	s.pods[name] = ns
	// The pod network lets through no redirect (node/cni/network/table.go, guard.go),
	// by which one pod would send to another straight, past the node's IP stack.
	for _, setting := range []string{"ipv4/conf/all", "ipv4/conf/default", "ipv6/conf/all", "ipv6/conf/default"} {
		must(s.t, os.WriteFile("/proc/sys/net/"+setting+"/accept_redirects", []byte("0"), 0o644))
	}
	up(s.t, "lo")
	must(s.t, netns.Set(s.node))
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: "v" + name, MTU: 1500})
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(ns))
	must(s.t, netlink.LinkAdd(veth))
	host := up(s.t, "v"+name)
	must(s.t, netlink.LinkSetMaster(host, s.link))
	must(s.t, netlink.LinkSetHairpin(host, true))
	must(s.t, netns.Set(ns))
	l := up(s.t, "eth0")
	for _, a := range addrs {
		ip, gw := net.ParseIP(a), net.ParseIP(gateway4)
		bits := 32
		if ip.To4() == nil {
			gw, bits = net.ParseIP(gateway6), 128
		}
		addAddress(s.t, l, fmt.Sprintf("%s/%d", a, bits))
		must(s.t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: gw, Mask: net.CIDRMask(bits, bits)}, Scope: netlink.SCOPE_LINK}))
		must(s.t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}, Gw: gw}))
	}
	for _, port := range []int{80, 81} {
		s.serve(port)
	}
	must(s.t, netns.Set(s.node))
}

// serve answers in the namespace of this thread.
func (s *segment) serve(port int) {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	must(s.t, err)
	s.answer(l)
	u, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
	must(s.t, err)
	s.t.Cleanup(func() { u.Close() })
	run.Go("serve", func() {
		b := make([]byte, 64)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(b[:n], from)
		}
	})
}

// answer sends back what connections bring.
func (s *segment) answer(l net.Listener) {
	s.t.Cleanup(func() { l.Close() })
	run.Go("serve", func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			run.Go("echo", func() { defer c.Close(); _, _ = io.Copy(c, c) })
		}
	})
}

// in does something in a pod, or with an empty name on the node.
func (s *segment) in(pod string, do func() error) error {
	return run.OnThread("pod", func() error {
		ns := s.node
		if pod != "" {
			ns = s.pods[pod]
		}
		if err := netns.Set(ns); err != nil {
			return err
		}
		return do()
	})
}

// What is dropped is waited for this long, and what must arrive so long.
const soon, surely = 300 * time.Millisecond, 5 * time.Second

// dial connects from a pod.
func (s *segment) dial(pod, network, to string, wait time.Duration) (c net.Conn, err error) {
	return c, s.in(pod, func() error {
		if network == "sctp" {
			c, err = sctptest.Dial(to, wait)
		} else {
			c, err = net.DialTimeout(network, to, wait)
		}
		return err
	})
}

// echo says whether what is sent comes back.
func echo(c net.Conn, wait time.Duration) bool {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	n, _ := c.Read(make([]byte, 1))
	return n == 1
}

// reaches asks whether a pod has an answer from an address.
func (s *segment) reaches(pod, network, to string, wait time.Duration) bool {
	c, err := s.dial(pod, network, to, wait)
	if err != nil {
		return false
	}
	defer c.Close()
	return echo(c, wait)
}

// want is what becomes of connections of a pod: PROTOCOL ADDRESS:PORT to whether
// it is answered.
func (s *segment) want(pod string, answers map[string]bool) {
	s.t.Helper()
	for to, want := range answers {
		wait := soon
		if want {
			wait = surely
		}
		network, address, _ := strings.Cut(to, " ")
		if got := s.reaches(pod, network, address, wait); got != want {
			s.t.Errorf("%s to %s: answered %v, want %v", pod, to, got, want)
		}
	}
}

// A live is an index with a real kernel.
type live struct {
	*world
	k *kernel
}

func newLive(t testing.TB) *live {
	k, err := newNFTables("knarr-test")
	must(t, err)
	t.Cleanup(func() { k.Close() })
	w := &world{t: t, index: newIndex(thisNode), kernel: newFake(), pods: nil}
	w.pods = map[cache.ObjectName]*corev1.Pod{}
	return &live{w, k}
}

// write takes changes to both kernels.
func (l *live) write(all bool) {
	l.t.Helper()
	changes := l.index.take
	if all {
		changes = l.index.whole
	}
	refused, err := l.k.Apply(changes(), all)
	if err != nil || len(refused) > 0 {
		l.t.Fatalf("%v, refused %v", err, refused)
	}
}

func (l *live) open(addrs ...string) {
	l.t.Helper()
	for _, a := range addrs {
		must(l.t, l.k.Open([]netip.Addr{netip.MustParseAddr(a)}))
	}
}
