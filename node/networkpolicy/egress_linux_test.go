package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	"knarr/internal/run"
)

// service sends connections to an address and port to another, as kube-proxy
// does, and masquerades a pod that reaches itself.
func service(t *testing.T, from, to string, port uint16) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	table := c.AddTable(&nftables.Table{Name: "service", Family: nftables.TableFamilyIPv4})
	pre := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: []expr.Any{
		address(false, false, reg),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: netip.MustParseAddr(from).AsSlice()},
		&expr.Immediate{Register: 1, Data: netip.MustParseAddr(to).AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nftables.TableFamilyIPv4), RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}})
	post := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
		address(false, true, reg),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: netip.MustParseAddr(to).AsSlice()},
		address(false, false, reg),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: netip.MustParseAddr(to).AsSlice()},
		&expr.Masq{},
	}})
	must(t, c.Flush())
}

// outside adds a host of another network, which serves as pods do.
func (s *segment) outside(name, gateway, address string) {
	s.t.Helper()
	ns, err := netns.New()
	must(s.t, err)
	s.t.Cleanup(func() { ns.Close() })
	s.pods[name] = ns
	up(s.t, "lo")
	must(s.t, netns.Set(s.node))
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: "v" + name, MTU: 1500})
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(ns))
	must(s.t, netlink.LinkAdd(veth))
	addAddress(s.t, up(s.t, "v"+name), gateway+"/24")
	must(s.t, netns.Set(ns))
	l := up(s.t, "eth0")
	addAddress(s.t, l, address+"/24")
	must(s.t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: netip.MustParseAddr(gateway).AsSlice()}))
	for _, port := range []int{80, 81} {
		s.serve(port)
	}
	must(s.t, netns.Set(s.node))
}

// TestEgress sends packets out of a pod: to others, by a Service, to the node and
// to other networks.
func TestEgress(t *testing.T) {
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	s.outside("w", "192.168.9.1", "192.168.9.2")
	service(t, "10.43.0.7", "10.42.0.11", 80)
	l.write(true)
	a := selects("pod", "a")
	all := map[string]bool{"tcp 10.42.0.11:80": true, "tcp 10.42.0.12:80": true, "tcp 192.168.9.2:80": true, "tcp 10.43.0.7:5000": true}
	s.want("a", all)

	l.policy("x", "out", egress(a))
	l.write(false)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false, "tcp [fd42::12]:80": false, "tcp 192.168.9.2:80": false, "tcp 10.43.0.7:5000": false})
	s.want("b", map[string]bool{"tcp 10.42.0.10:80": true}) // answers are no egress

	l.policy("x", "out", egress(a, networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{peer(selects("pod", "b"), nil)}, Ports: []networkingv1.NetworkPolicyPort{port(tcp, "serve-80-tcp")}}))
	l.write(false)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": true, "tcp 10.42.0.11:81": false, "tcp 10.42.0.12:80": false, "tcp 10.43.0.7:5000": true}) // judged by its endpoint

	l.policy("x", "out", egress(a, to(block("192.168.0.0/16", "192.168.9.0/30"), block("10.42.0.12/32"))))
	l.write(false)
	s.want("a", map[string]bool{"tcp 192.168.9.2:80": false, "tcp 10.42.0.12:80": true, "tcp 10.42.0.11:80": false})
	l.policy("x", "out", egress(a, to(block("192.168.0.0/16", "192.168.9.128/25"))))
	l.write(false)
	s.want("a", map[string]bool{"tcp 192.168.9.2:80": true, "tcp 10.42.0.12:80": false})

	// From outside, and a pod that reaches itself through a Service.
	l.policy("x", "out", ingress(selects("pod", "b"), from(block("192.168.9.0/24"))))
	l.write(false)
	s.want("w", map[string]bool{"tcp 10.42.0.11:80": true, "tcp 10.43.0.7:80": true})
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false, "tcp 10.43.0.7:80": false})
	s.want("b", map[string]bool{"tcp 10.43.0.7:80": true})
}

// TestNewPods: nothing new passes to or from a new pod until it is opened, for
// two seconds at most, and the kernel tells of it.
func TestNewPods(t *testing.T) {
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	l.write(true)
	attached, gone := make(chan attachment, 10), make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	run.Go("watch", func() {
		ended <- l.k.Watch(ctx, func(why string) { gone <- why }, func(uid string, a netip.Addr) { attached <- attachment{uidOf(uid), a} })
	})
	c, err := nftables.New()
	must(t, err)
	for _, ip := range []string{"10.42.0.11", "fd42::11"} {
		a := netip.MustParseAddr(ip)
		must(t, c.SetAddElements(newPods(l.k.table, a.Is6()), []nftables.SetElement{{Key: a.AsSlice(), Comment: "x-b"}}))
	}
	must(t, c.Flush())
	var got []attachment
	for range 2 {
		got = append(got, <-attached)
	}
	for _, ip := range []string{"10.42.0.11", "fd42::11"} {
		if !slices.Contains(got, attachment{"x-b", netip.MustParseAddr(ip)}) {
			t.Errorf("told of %v, want %s", got, ip)
		}
	}
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false})
	s.want("b", map[string]bool{"tcp 10.42.0.10:80": false})
	s.want("", map[string]bool{"tcp 10.42.0.11:80": true})
	l.open("10.42.0.11", "fd42::11", "10.42.0.99")
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": true, "tcp [fd42::11]:80": true})

	// Nothing of this is a loss; what others take away is.
	l.policy("x", "deny", ingress(selects("pod", "b")))
	l.write(false)
	l.policy("x", "deny", ingress(selects("pod", "b"), from(peer(selects("pod", "c"), nil))))
	l.write(true)
	select {
	case <-gone:
		t.Error("its own changes are taken for a loss")
	default:
	}
	c.FlushRuleset()
	must(t, c.Flush())
	<-gone
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": true})
	if _, err := l.k.Apply(l.index.take(), false); err != nil {
		t.Errorf("writing nothing: %v", err)
	}
	l.policy("x", "deny", ingress(selects("pod", "b")))
	if _, err := l.k.Apply(l.index.take(), false); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("writing to a table that is gone: %v", err)
	}
	l.write(true)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false})
	c.FlushTable(l.k.table)
	must(t, c.Flush())
	<-gone
	l.write(true)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTenThousandBlocks: a policy as large as can be stored is in force whole.
func TestTenThousandBlocks(t *testing.T) {
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	s.outside("w", "192.168.9.1", "192.168.9.2")
	l.write(true)
	var peers []networkingv1.NetworkPolicyPeer
	for i := range 10_000 {
		peers = append(peers, block(fmt.Sprintf("172.%d.%d.0/25", 16+i/256, i%256), fmt.Sprintf("172.%d.%d.4/32", 16+i/256, i%256)),
			block(fmt.Sprintf("2001:db8:%x::/64", i)))
	}
	l.policy("x", "many", egress(selects("pod", "a"), to(append(peers, block("192.168.9.2/32"))...)))
	for _, all := range []bool{false, true} {
		began := time.Now()
		l.write(all)
		t.Logf("written in %v", time.Since(began))
		s.want("a", map[string]bool{"tcp 192.168.9.2:80": true, "tcp 10.42.0.11:80": false})
	}
	l.index.setPolicy(objectName("x", "many"), nil)
	l.write(false)
	l.nothingLeft()
}

// TestRefused: what the kernel refuses of one policy costs the others nothing, and
// opens no pod.
func TestRefused(t *testing.T) {
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	l.policy("x", "good", ingress(selects("pod", "b"), from(peer(selects("pod", "a"), nil))))
	l.policy("x", "bad", ingress(selects("pod", "b"), from(peer(selects("pod", "c"), nil), block("10.0.0.0/8"))))
	for i := range 5 {
		l.policy("x", fmt.Sprint("other", i), ingress(selects("pod", "c"), from(block(fmt.Sprintf("10.%d.0.0/16", i)))))
	}
	changes := l.index.whole()
	for _, set := range changes.Sets { // ranges that overlap, which the plan never makes
		if set.Kind == Blocks && set.Blocks[0].First == netip.MustParseAddr("10.0.0.0") && set.Blocks[0].Last == netip.MustParseAddr("10.255.255.255") {
			set.Blocks = append(set.Blocks, Range{netip.MustParseAddr("10.1.0.0"), netip.MustParseAddr("11.0.0.0")})
		}
	}
	refused, err := l.k.Apply(changes, true)
	if err != nil || len(refused) != 1 || refused[objectName("x", "bad")] == nil {
		t.Fatalf("%v, refused %v; want x/bad alone", err, refused)
	}
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": true})
	s.want("c", map[string]bool{"tcp 10.42.0.11:80": false})
	l.index.setPolicy(objectName("x", "bad"), nil)
	l.write(false)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": true})
}

// TestLinkLocal: a pod does not pass its policies with its link-local address,
// which no map has.
func TestLinkLocal(t *testing.T) {
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	const linkLocal = "fe80::a"
	must(t, s.in("a", func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(linkLocal), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD})
	}))
	l.policy("x", "out", egress(selects("pod", "a")))
	l.write(true)
	arrived, err := s.listen("b", "[fd42::11]:9")
	must(t, err)
	defer arrived.Close()
	must(t, s.in("a", func() error {
		for _, from := range []string{linkLocal + "%eth0", ""} {
			d := net.Dialer{}
			if from != "" {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(linkLocal), Zone: "eth0"}
			}
			c, err := d.Dial("udp", "[fd42::11]:9")
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte(from)); err != nil {
				return err
			}
		}
		return nil
	}))
	last, err := s.dial("c", "udp", "[fd42::11]:9", surely)
	must(t, err)
	defer last.Close()
	_, err = last.Write([]byte("last"))
	must(t, err)
	must(t, arrived.SetReadDeadline(time.Now().Add(surely)))
	b := make([]byte, 64)
	if n, from, err := arrived.ReadFrom(b); err != nil || string(b[:n]) != "last" {
		t.Errorf("%q comes from %v: %v", b[:n], from, err)
	}
}

// listen takes what comes to an address of a pod.
func (s *segment) listen(pod, at string) (c net.PacketConn, err error) {
	return c, s.in(pod, func() error {
		c, err = net.ListenPacket("udp", at)
		return err
	})
}
