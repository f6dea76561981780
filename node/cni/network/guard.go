package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The guard keeps a pod from speaking for another: what its link sends must have
// the pod's own hardware address and IP addresses, also in ARP and neighbour
// discovery, and is nothing that only routers and DHCP servers say; and IP goes to
// the bridge, not straight to a neighbour, past the network policies. It is a
// table of the bridge family, which sees each frame before the bridge learns
// from it, with or without br_netfilter. A pod's elements are there before its
// link is and go after it, so no link of a pod is ever without them.
//
// The kernel needs nf_tables with the bridge family (NF_TABLES_BRIDGE); without
// it no pod is attached, for each could then take over its neighbours' traffic.
const (
	guardPorts = "ports"  // link
	guardMACs  = "macs"   // link . hardware address
	guardAddr4 = "addrs4" // link . address
	guardAddr6 = "addrs6"
)

var guardOrder = []string{guardPorts, guardMACs, guardAddr4, guardAddr6}

func guardTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyBridge}
}

// guardSets gives the guard's sets, empty.
func guardSets(t *nftables.Table) map[string]*nftables.Set {
	link, concat := nftables.TypeIFName, nftables.MustConcatSetType
	byName := map[string]*nftables.Set{}
	for name, key := range map[string]nftables.SetDatatype{
		guardPorts: link,
		guardMACs:  concat(link, nftables.TypeEtherAddr),
		guardAddr4: concat(link, nftables.TypeIPAddr),
		guardAddr6: concat(link, nftables.TypeIP6Addr),
	} {
		byName[name] = &nftables.Set{Table: t, Name: name, KeyType: key}
	}
	return byName
}

// guardElements gives what a pod may send with. Pure.
func guardElements(a *Attachment) []element {
	if len(a.Addrs) == 0 {
		return nil
	}
	link, mac := string(linkName(hostLink(a.key()))), hardware(a.Addrs[0])
	all := []element{
		{set: guardPorts, key: link},
		{set: guardMACs, key: link + string(mac) + "\x00\x00"},
		{set: guardAddr6, key: link + string(linkLocal(mac).AsSlice())},
	}
	for _, addr := range a.Addrs {
		set := guardAddr4
		if addr.Is6() {
			set = guardAddr6
		}
		all = append(all, element{set: set, key: link + string(addr.AsSlice())})
	}
	return all
}

// linkLocal is the address that the kernel gives a link with this hardware
// address by itself.
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// linkName is a link's name as the kernel compares it.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// addGuard adds the guard's table to a transaction.
func addGuard(conn *nftables.Conn, c *Conf, attachments []*Attachment) error {
	t := guardTable(c.Table)
	conn.AddTable(t) // so that there is one to delete
	conn.DelTable(t)
	conn.AddTable(t)
	byName := guardSets(t)
	filled := map[string][]element{}
	for _, a := range attachments {
		for _, e := range guardElements(a) {
			filled[e.set] = append(filled[e.set], e)
		}
	}
	for _, name := range guardOrder {
		if err := addSet(conn, byName[name], filled[name]); err != nil {
			return err
		}
	}
	chain := func(name string, rules [][]expr.Any) {
		ch := conn.AddChain(&nftables.Chain{Table: t, Name: name})
		for _, r := range rules {
			conn.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: r})
		}
	}
	g := guardRules{byName, routerMAC(c)}
	chain("arp", g.arp())
	chain("ip4", g.ip4())
	chain("ip6", g.ip6())
	first := conn.AddChain(&nftables.Chain{Table: t, Name: "prerouting", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		// Before anything else that looks at bridged frames.
		Priority: nftables.ChainPriorityRef(-400)})
	for _, r := range g.first() {
		conn.AddRule(&nftables.Rule{Table: t, Chain: first, Exprs: r})
	}
	return nil
}

type guardRules struct {
	sets   map[string]*nftables.Set
	router net.HardwareAddr
}

// routerMAC is the bridge's hardware address, as it will be if there is none yet.
func routerMAC(c *Conf) net.HardwareAddr {
	if link, err := netlink.LinkByName(c.Bridge); err == nil {
		return link.Attrs().HardwareAddr
	}
	return hardware(gateway(c.PodCIDRs[0]))
}

// lookup matches a packet whose link, with what is loaded behind it, is in the
// set, or is not.
func (g guardRules) lookup(set string, is bool, load ...expr.Any) []expr.Any {
	all := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0}}, load...)
	s := g.sets[set]
	return append(all, &expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID, Invert: !is})
}

// behind is the register behind the link's name.
const behind = reg0 + unix.IFNAMSIZ/4

func load(base expr.PayloadBase, offset, size uint32) expr.Any {
	return &expr.Payload{DestRegister: behind, Base: base, Offset: offset, Len: size}
}

func (g guardRules) first() [][]expr.Any {
	rules := [][]expr.Any{
		append(g.lookup(guardPorts, false), verdict(expr.VerdictAccept, "")...), // nothing of ours
		append(g.lookup(guardMACs, false, load(expr.PayloadBaseLLHeader, 6, 6)), verdict(expr.VerdictDrop, "")...),
	}
	// The type as it is in the frame: behind a VLAN tag or an LLC header, which
	// a receiver strips, nothing is let through.
	for _, k := range []struct {
		kind  uint16
		chain string
	}{{unix.ETH_P_ARP, "arp"}, {unix.ETH_P_IP, "ip4"}, {unix.ETH_P_IPV6, "ip6"}} {
		rules = append(rules, append([]expr.Any{
			&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.BigEndian.PutUint16(k.kind)},
		}, verdict(expr.VerdictGoto, k.chain)...))
	}
	return append(rules, verdict(expr.VerdictDrop, ""))
}

// arp lets through what has the pod's own addresses as those of the sender.
func (g guardRules) arp() [][]expr.Any {
	const senderMAC, senderIP = 8, 14
	return [][]expr.Any{
		append(g.lookup(guardMACs, false, load(expr.PayloadBaseNetworkHeader, senderMAC, 6)), verdict(expr.VerdictDrop, "")...),
		append(g.lookup(guardAddr4, true, load(expr.PayloadBaseNetworkHeader, senderIP, 4)), verdict(expr.VerdictAccept, "")...),
		verdict(expr.VerdictDrop, ""),
	}
}

// own accepts what comes from the pod's own address; a packet whose headers the
// kernel cannot follow to their end, so that other rules did not see it, is
// none of those.
func (g guardRules) own(set string, offset, size uint32) []expr.Any {
	return append(append([]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0}},
		g.lookup(set, true, load(expr.PayloadBaseNetworkHeader, offset, size))...), verdict(expr.VerdictAccept, "")...)
}

// toRouter matches what is sent to the bridge itself, whose IP stack is where
// services and policies are.
func (g guardRules) toRouter() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseLLHeader, Offset: 0, Len: 6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: g.router},
	}
}

// toAddress matches what is sent to addresses that begin so, at this offset of
// the header.
func toAddress(offset uint32, mask, begin []byte) []expr.Any {
	n := uint32(len(mask))
	return []expr.Any{
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: n, Mask: mask, Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: begin},
	}
}

func (g guardRules) ip4() [][]expr.Any {
	return [][]expr.Any{
		append(udpPorts(67, 68), verdict(expr.VerdictDrop, "")...), // a DHCP server's
		append(g.toRouter(), g.own(guardAddr4, 12, 4)...),
		// What is sent to many is bridged to each pod, past policies.
		append(toAddress(16, []byte{0xf0}, []byte{0xe0}), append(protocol(unix.IPPROTO_IGMP), g.own(guardAddr4, 12, 4)...)...),
		verdict(expr.VerdictDrop, ""),
	}
}

func (g guardRules) ip6() [][]expr.Any {
	const source = 8
	target := load(expr.PayloadBaseTransportHeader, 8, 16)
	join := func(parts ...[]expr.Any) (all []expr.Any) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	icmp := func(kind byte) []expr.Any { return icmpType(unix.IPPROTO_ICMPV6, kind) }
	rules := [][]expr.Any{
		// No router advertisement, no redirect, and no neighbour advertisement
		// for another.
		join(icmp(134), verdict(expr.VerdictDrop, "")),
		join(icmp(137), verdict(expr.VerdictDrop, "")),
		join(icmp(136), g.lookup(guardAddr6, false, target), verdict(expr.VerdictDrop, "")),
		// Before a link uses its address it asks, from no address, whether
		// another has it.
		join(icmp(135), []expr.Any{
			&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: 16},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: make([]byte, 16)},
		}, g.lookup(guardAddr6, true, target), verdict(expr.VerdictAccept, "")),
		join(udpPorts(547, 546), verdict(expr.VerdictDrop, "")), // a DHCPv6 server's
		append(g.toRouter(), g.own(guardAddr6, source, 16)...),
	}
	for _, kind := range toMany6 {
		rules = append(rules, join(toAddress(24, []byte{0xff}, []byte{0xff}), icmp(kind), g.own(guardAddr6, source, 16)))
	}
	return append(rules, verdict(expr.VerdictDrop, ""))
}

// toMany6 are the ICMPv6 messages that a pod may send to many: multicast listener
// reports and ends, router and neighbour solicitations, neighbour advertisements.
// What else is sent to many is bridged to each pod, past policies.
var toMany6 = []byte{131, 132, 143, 133, 135, 136}

func protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{number}},
	}
}

func udpPorts(source, dest uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: append(binaryutil.BigEndian.PutUint16(source), binaryutil.BigEndian.PutUint16(dest)...)},
	}
}

// guard adds a pod's elements. A table that is gone is made anew, from all that
// is remembered.
func guard(c *Conf, a *Attachment) error {
	err := c.changeSets(guardSets(guardTable(c.Table)), guardElements(a), (*nftables.Conn).SetAddElements)
	if errors.Is(err, unix.ENOENT) {
		return writeTable(c)
	}
	if err != nil {
		return fmt.Errorf("guard the pod's link: %w", err)
	}
	return nil
}

// unguard takes a pod's elements away, those of them that are there.
func unguard(c *Conf, a *Attachment) error {
	byName, list := guardSets(guardTable(c.Table)), guardElements(a)
	err := c.changeSets(byName, list, (*nftables.Conn).SetDeleteElements)
	if noFamily(err) {
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	for _, e := range list { // one that is missing undoes the whole
		if err := c.changeSets(byName, []element{e}, (*nftables.Conn).SetDeleteElements); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
