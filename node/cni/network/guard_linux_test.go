package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A tap sends and sees the frames of one link.
type tap struct{ fd, index int }

func (ns *netspace) tap(t *testing.T, link string) *tap {
	t.Helper()
	p := &tap{}
	must(t, ns.do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		all := int(binary.BigEndian.Uint16([]byte{unix.ETH_P_ALL & 0xff, unix.ETH_P_ALL >> 8}))
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		p.index = l.Attrs().Index
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: p.index})
	}))
	must(t, unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func (p *tap) send(t *testing.T, frame []byte) {
	t.Helper()
	if err := unix.Sendto(p.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: p.index}); err != nil {
		t.Fatalf("send a frame: %v", err)
	}
}

// until gives the names of the frames that arrive, up to the last one.
func (p *tap) until(t *testing.T, last string) (names []string) {
	t.Helper()
	b := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(p.fd, b, 0)
		if err != nil {
			t.Fatalf("waiting for the frame %q after %v: %v", last, names, err)
		}
		if sent, ok := from.(*unix.SockaddrLinklayer); ok && sent.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		// The name is at the end: a bracket before it is a byte of an address.
		start := bytes.LastIndexByte(b[:n], '[')
		if start < 0 {
			continue
		}
		found, _, ended := bytes.Cut(b[start+1:n], []byte("]"))
		if !ended {
			continue
		}
		name := string(found)
		if name == last {
			return names
		}
		names = append(names, name)
	}
}

// frame is an Ethernet frame with a name in it.
func frame(to, from net.HardwareAddr, kind uint16, name string, parts ...[]byte) []byte {
	f := slices.Concat(to, from, binary.BigEndian.AppendUint16(nil, kind))
	for _, p := range parts {
		f = append(f, p...)
	}
	return append(f, fmt.Sprintf("%-*s", nameLen, "["+name+"]")...)
}

// nameLen is how many bytes the name takes at the end of each frame.
const nameLen = 48

func arp(op uint16, mac net.HardwareAddr, from, to netip.Addr) []byte {
	a := append([]byte{0, 1, 8, 0, 6, 4}, byte(op>>8), byte(op))
	return slices.Concat(a, mac, from.AsSlice(), make([]byte, 6), to.AsSlice())
}

func udp4(from, to netip.Addr, source, dest uint16) []byte {
	h := []byte{0x45, 0, 0, 28 + nameLen, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	h = slices.Concat(h, from.AsSlice(), to.AsSlice())
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum>>16+sum&0xffff))
	h = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, source), dest)
	return append(h, 0, 8+nameLen, 0, 0)
}

func udp6(from, to netip.Addr, source, dest uint16) []byte {
	h := slices.Concat([]byte{0x60, 0, 0, 0, 0, 8 + nameLen, unix.IPPROTO_UDP, 255}, from.AsSlice(), to.AsSlice())
	h = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, source), dest)
	return append(h, 0, 8+nameLen, 0, 0)
}

// igmp is a message of IGMP of a kind that the bridge passes on as it is, with the
// name that the frame will have, since the bridge looks at its checksum.
func igmp(from, to netip.Addr, name string) []byte {
	h := udp4(from, to, 0x1f00, 0)
	h[9] = unix.IPPROTO_IGMP
	binary.BigEndian.PutUint16(h[10:], binary.BigEndian.Uint16(h[10:])+unix.IPPROTO_UDP-unix.IPPROTO_IGMP)
	h = append(h[:20], 0x1f, 0, 0, 0, 0, 0, 0, 0)
	message := append(slices.Clone(h[20:]), fmt.Sprintf("%-*s", nameLen, "["+name+"]")...)
	sum := uint32(0)
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(h[22:], ^uint16(sum>>16+sum))
	return h
}

// icmp6 is an ICMPv6 message, behind a header of options if options is set.
func icmp6(from, to netip.Addr, kind byte, target netip.Addr, options bool) []byte {
	next, body := byte(unix.IPPROTO_ICMPV6), slices.Concat([]byte{kind, 0, 0, 0, 0x60, 0, 0, 0}, target.AsSlice(), nil)
	if options {
		body = slices.Concat([]byte{next, 0, 1, 4, 0, 0, 0, 0}, body)
		next = unix.IPPROTO_DSTOPTS
	}
	return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(body) + nameLen), next, 255}, from.AsSlice(), to.AsSlice(), body)
}

// A pod with CAP_NET_RAW speaks for itself alone: not with another's address or
// hardware address, not as a router, and not to a neighbour's tables.
func TestPodsCannotSpeakForOthers(t *testing.T) {
	for _, filtered := range []string{"0", "1"} { // bridged frames, by br_netfilter
		t.Run("bridge-nf="+filtered, func(t *testing.T) { testPodsCannotSpeakForOthers(t, filtered) })
	}
}

func testPodsCannotSpeakForOthers(t *testing.T, filtered string) {
	w := newWorld(t)
	must(t, w.node.do(func() error {
		for _, what := range []string{"iptables", "ip6tables", "arptables"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+what, []byte(filtered), 0o644)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	}))
	a, a4, a6 := w.add(t, "aaaa")
	b, b4, b6 := w.add(t, "bbbb")
	addr := netip.MustParseAddr
	own4, own6, their4, their6, gate4, gate6 := addr(a4), addr(a6), addr(b4), addr(b6), addr("10.9.1.1"), addr("fd00:9:1::1")
	mac, theirs, router := net.HardwareAddr(hardware(own4)), net.HardwareAddr(hardware(their4)), net.HardwareAddr(hardware(gate4))
	local := addr("fe80::858:aff:fe09:102") // of own4's hardware address
	everybody, nodes := net.HardwareAddr{255, 255, 255, 255, 255, 255}, addr("ff02::1")
	nodesMAC, allMAC4 := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
	const arpKind, ip4, ip6 = unix.ETH_P_ARP, unix.ETH_P_IP, unix.ETH_P_IPV6

	sender := a.tap(t, "eth0")
	for _, to := range []struct {
		who  string
		mac  net.HardwareAddr
		ip4  netip.Addr
		ip6  netip.Addr
		at   *netspace
		link string
	}{{"the neighbour", theirs, their4, their6, b, "eth0"}, {"the node", router, gate4, gate6, w.node, w.conf.Bridge}} {
		receiver := to.at.tap(t, to.link)
		for _, f := range [][]byte{
			frame(to.mac, mac, ip4, "source of nobody", udp4(addr("10.9.1.200"), to.ip4, 1, 2)),
			frame(to.mac, mac, ip4, "source of the world", udp4(addr("192.0.2.2"), to.ip4, 1, 2)),
			frame(to.mac, mac, ip4, "source of another", udp4(their4, to.ip4, 1, 2)),
			frame(to.mac, mac, ip4, "source of the node", udp4(gate4, to.ip4, 1, 2)),
			frame(to.mac, mac, ip6, "IPv6 source of another", icmp6(their6, to.ip6, 128, their6, false)),
			frame(to.mac, mac, ip6, "link-local source of another", icmp6(addr("fe80::1"), to.ip6, 128, their6, false)),
			frame(to.mac, theirs, ip4, "hardware address of another", udp4(own4, to.ip4, 1, 2)),
			frame(to.mac, router, ip4, "hardware address of the node", udp4(own4, to.ip4, 1, 2)),
			frame(to.mac, mac, arpKind, "ARP answer for the node", arp(2, mac, gate4, to.ip4)),
			frame(to.mac, mac, arpKind, "ARP answer for another", arp(2, mac, their4, to.ip4)),
			frame(everybody, mac, arpKind, "ARP question as the node", arp(1, mac, gate4, to.ip4)),
			frame(to.mac, mac, arpKind, "ARP with another's hardware address", arp(2, theirs, own4, to.ip4)),
			frame(nodesMAC, mac, ip6, "router advertisement", icmp6(local, nodes, 134, addr("::"), false)),
			frame(to.mac, mac, ip6, "router advertisement to one", icmp6(own6, to.ip6, 134, addr("::"), false)),
			frame(nodesMAC, mac, ip6, "router advertisement behind options", icmp6(local, nodes, 134, addr("::"), true)),
			frame(to.mac, mac, ip6, "redirect", icmp6(local, to.ip6, 137, gate6, false)),
			frame(nodesMAC, mac, ip6, "neighbour advertisement for the node", icmp6(own6, nodes, 136, gate6, false)),
			frame(to.mac, mac, ip6, "neighbour advertisement for another", icmp6(local, to.ip6, 136, addr("fd00:9:1::77"), false)),
			frame(nodesMAC, mac, ip6, "duplicate address question for another", icmp6(addr("::"), nodes, 135, their6, false)),
			frame(everybody, mac, ip4, "UDP to all", udp4(own4, addr("255.255.255.255"), 1, 2)),
			frame(allMAC4, mac, ip4, "UDP to many", udp4(own4, addr("224.0.0.1"), 1, 2)),
			frame(theirs, mac, ip4, "UDP to many, to one link", udp4(own4, addr("224.0.0.1"), 1, 2)),
			frame(nodesMAC, mac, ip6, "IPv6 UDP to many", udp6(own6, nodes, 1, 2)),
			frame(nodesMAC, mac, ip6, "IPv6 echo to many", icmp6(own6, nodes, 128, own6, false)),
			frame(everybody, mac, ip4, "DHCP answer", udp4(own4, addr("255.255.255.255"), 67, 68)),
			frame(to.mac, mac, 0x8100, "in a VLAN", []byte{0, 0, arpKind >> 8, arpKind & 0xff}, arp(2, mac, gate4, to.ip4)),
			frame(to.mac, mac, 8+nameLen, "in LLC", []byte{0xaa, 0xaa, 3, 0, 0, 0, arpKind >> 8, arpKind & 0xff}, arp(2, mac, gate4, to.ip4)),
		} {
			sender.send(t, f)
		}
		sender.send(t, frame(to.mac, mac, ip4, "own", udp4(own4, to.ip4, 1, 2)))
		sender.send(t, frame(to.mac, mac, ip6, "own IPv6", icmp6(own6, to.ip6, 128, own6, false)))
		sender.send(t, frame(to.mac, mac, ip6, "own link-local", icmp6(local, to.ip6, 128, own6, false)))
		sender.send(t, frame(to.mac, mac, ip6, "own advertisement", icmp6(own6, to.ip6, 136, own6, false)))
		sender.send(t, frame(nodesMAC, mac, ip6, "own duplicate address question", icmp6(addr("::"), nodes, 135, local, false)))
		sender.send(t, frame(to.mac, mac, arpKind, "own ARP", arp(2, mac, own4, to.ip4)))
		sender.send(t, frame(everybody, mac, ip4, "own to another, by broadcast", udp4(own4, their4, 1, 2)))
		sender.send(t, frame(nodesMAC, mac, ip6, "own advertisement to many", icmp6(own6, nodes, 136, own6, false)))
		sender.send(t, frame(nodesMAC, mac, ip6, "own question to many", icmp6(own6, nodes, 135, their6, false)))
		sender.send(t, frame(nodesMAC, mac, ip6, "own listener report", icmp6(local, nodes, 143, addr("::"), true)))
		sender.send(t, frame(allMAC4, mac, ip4, "own IGMP", igmp(own4, addr("224.0.0.1"), "own IGMP")))
		sender.send(t, frame(to.mac, mac, arpKind, "last", arp(2, mac, own4, to.ip4)))
		got := receiver.until(t, "last")
		many := []string{"own duplicate address question", "own ARP", "own advertisement to many", "own question to many", "own listener report", "own IGMP"}
		want := append([]string{"own", "own IPv6", "own link-local", "own advertisement"}, many...)
		if to.at == b { // past the node's IP stack, and so past policies
			want = many
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s gets %q, want %q", to.who, got, want)
		}
	}
	must(t, w.node.do(func() error {
		for _, link := range []string{w.conf.Bridge, hostLink(key("aaaa", "eth0"))} {
			b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + link + "/accept_ra")
			if err != nil {
				return err
			}
			if got := strings.TrimSpace(string(b)); got != "0" {
				t.Errorf("%s has accept_ra=%s", link, got)
			}
		}
		return nil
	}))
}

// What comes out of the tunnel is taken for a pod's of another node, so no pod
// may send into it: neither on its own node nor on another.
func TestPodsCannotSendIntoTheTunnel(t *testing.T) {
	w := newWorld(t)
	pod, _, _ := w.add(t, "aaaa")
	outside := w.outside.tap(t, "up")
	must(t, pod.do(func() error {
		for _, to := range []string{"192.0.2.2:8472", "[2001:db8::2]:8472", "192.0.2.2:8473"} {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("[" + to[len(to)-4:] + "]")); err != nil {
				return err
			}
		}
		return nil
	}))
	if got := outside.until(t, "8473"); len(got) > 0 {
		t.Errorf("%v come to another node", got)
	}
}

// guardSizes counts the elements of the guard's sets.
func guardSizes(table string) (sizes []int, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	byName := guardSets(guardTable(table))
	for _, name := range guardOrder {
		elements, err := conn.GetSetElements(byName[name])
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, len(elements))
	}
	return sizes, nil
}

// The guard of a pod comes and goes with it, and a repair makes it again.
func TestGuardFollowsPods(t *testing.T) {
	w := newWorld(t)
	count := func() (n string) {
		must(t, w.node.do(func() error {
			sizes, err := guardSizes(w.conf.Table)
			n = fmt.Sprint(sizes)
			return err
		}))
		return n
	}
	a, _, _ := w.add(t, "aaaa")
	one := count()
	w.add(t, "bbbb")
	two := count()
	must(t, w.node.do(func() error { return RemoveTable(w.conf.Table) }))
	if _, code := w.command(t, "STATUS", "", nil); code == 0 {
		t.Error("STATUS finds nothing amiss without the guard")
	}
	must(t, w.node.do(func() error { return EnsureTable(&w.conf) }))
	if got := count(); got != two {
		t.Errorf("a repair makes the sizes %s, they were %s", got, two)
	}
	if out, code := w.command(t, "ADD", "aaaa", a); code != 0 {
		t.Fatalf("ADD again: %s", out)
	}
	for range 2 {
		if out, code := w.command(t, "DEL", "bbbb", nil); code != 0 {
			t.Fatalf("DEL: %s", out)
		}
	}
	if got := count(); got != one || one == two {
		t.Errorf("sizes are %s after one pod of two is gone, were %s with one and %s with two", got, one, two)
	}
}
