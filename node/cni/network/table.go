package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"knarr/internal/nft"
)

// Registers of four bytes; those of 16 start at every fourth.
const reg0 = unix.NFT_REG32_00

func tableOf(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// sets gives the table's sets, empty.
func sets(t *nftables.Table) map[string]*nftables.Set {
	concat := nftables.MustConcatSetType
	proto, port := nftables.TypeInetProto, nftables.TypeInetService
	v4, v6 := nftables.TypeIPAddr, nftables.TypeIP6Addr
	list := []*nftables.Set{
		{Name: portsAny4, IsMap: true, KeyType: concat(proto, port), DataType: concat(v4, port)},
		{Name: portsAny6, IsMap: true, KeyType: concat(proto, port), DataType: concat(v6, port)},
		{Name: portsOn4, IsMap: true, KeyType: concat(proto, v4, port), DataType: concat(v4, port)},
		{Name: portsOn6, IsMap: true, KeyType: concat(proto, v6, port), DataType: concat(v6, port)},
		{Name: hairpinOf4, KeyType: concat(v4, v4)},
		{Name: hairpinOf6, KeyType: concat(v6, v6)},
	}
	byName := map[string]*nftables.Set{}
	for _, s := range list {
		s.Table = t
		byName[s.Name] = s
	}
	return byName
}

// setOrder keeps the batch the same from run to run.
var setOrder = []string{portsAny4, portsAny6, portsOn4, portsOn6, hairpinOf4, hairpinOf6}

// EnsureTable puts the whole table in place, in one step, from what is
// remembered of the attachments.
func EnsureTable(c *Conf) error {
	return locked(c.StateDir, func() error { return writeTable(c) })
}

func writeTable(c *Conf) error {
	attachments, err := loadAttachments(c.StateDir)
	if err != nil {
		return err
	}
	return c.kernel.with(func(conn *nftables.Conn) error { return writeWhole(conn, c, attachments) })
}

func writeWhole(conn *nftables.Conn, c *Conf, attachments []*Attachment) error {
	t := tableOf(c.Table)
	conn.AddTable(t) // so that there is one to delete
	conn.DelTable(t)
	conn.AddTable(t)
	byName := sets(t)
	filled := map[string][]element{}
	for _, e := range allElements(attachments) {
		filled[e.set] = append(filled[e.set], e)
	}
	for _, name := range setOrder {
		if err := addSet(conn, byName[name], filled[name]); err != nil {
			return err
		}
	}
	addChains(conn, t, byName, c)
	if err := addGuard(conn, c, attachments); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", c.Table, err)
	}
	return nil
}

// setID is that of every set: the library's own counter is not for several
// goroutines, and the kernel finds sets by their names.
const setID = 1 << 30

// addSet adds a set and its elements, so many in each message that their list
// fits: its length has 16 bits, and what is beyond is cut off without an error.
func addSet(conn *nftables.Conn, s *nftables.Set, list []element) error {
	s.ID = setID
	if err := conn.AddSet(s, nil); err != nil {
		return fmt.Errorf("nftables set %s: %w", s.Name, err)
	}
	const most = 256 // of at most 128 bytes each
	for part := range slices.Chunk(list, most) {
		elements := make([]nftables.SetElement, len(part))
		for i, e := range part {
			elements[i] = setElement(e)
		}
		if err := conn.SetAddElements(s, elements); err != nil {
			return fmt.Errorf("nftables set %s: %w", s.Name, err)
		}
	}
	return nil
}

func setElement(e element) nftables.SetElement {
	s := nftables.SetElement{Key: []byte(e.key)}
	if e.val != "" {
		s.Val = []byte(e.val)
	}
	return s
}

// Masquerading is the chain of a table that hides pods from the world, one of those that
// are never empty.
func Masquerading(table string) *nftables.Chain {
	return &nftables.Chain{Table: tableOf(table), Name: "postrouting"}
}

func addChains(conn *nftables.Conn, t *nftables.Table, byName map[string]*nftables.Set, c *Conf) {
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{Table: t, Name: name, Type: kind, Hooknum: hook, Priority: prio})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		conn.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: all})
	}
	ports := conn.AddChain(&nftables.Chain{Table: t, Name: "hostports"})
	for _, m := range []struct {
		set    string
		v6, on bool
	}{{portsOn4, false, true}, {portsAny4, false, false}, {portsOn6, true, true}, {portsAny6, true, false}} {
		rule(ports, family(m.v6), lookupPort(byName[m.set], m.v6, m.on), dnat(m.v6))
	}

	in := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	rule(in, toLocal(), verdict(expr.VerdictJump, ports.Name))

	out := chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	// What comes from a loopback address could be answered only if loopback
	// addresses were let out of the node, which would open it to its
	// neighbours. So it finds no host port, and is told so at once.
	rule(out, family(false), from(netip.MustParsePrefix("127.0.0.0/8")), verdict(expr.VerdictReturn, ""))
	rule(out, family(true), from(netip.MustParsePrefix("::1/128")), verdict(expr.VerdictReturn, ""))
	rule(out, toLocal(), verdict(expr.VerdictJump, ports.Name))

	post := chain(Masquerading(t.Name).Name, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, v6 := range []bool{false, true} {
		name := hairpinOf4
		if v6 {
			name = hairpinOf6
		}
		rule(post, family(v6), ownAddress(byName[name], v6), masquerade())
	}
	for _, p := range append([]netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}, c.ClusterCIDRs...) {
		rule(post, family(p.Addr().Is6()), to(p), verdict(expr.VerdictReturn, ""))
	}
	for _, p := range c.PodCIDRs {
		rule(post, family(p.Addr().Is6()), to(p), verdict(expr.VerdictReturn, ""))
		rule(post, family(p.Addr().Is6()), from(p), masquerade())
	}

	// The node forwards between pods of the same bridge and would tell them
	// that there is a shorter way, past the policies.
	own := chain("redirects", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	rule(own, throughBridge(c.Bridge), icmpType(unix.IPPROTO_ICMP, 5), verdict(expr.VerdictDrop, ""))
	rule(own, throughBridge(c.Bridge), icmpType(unix.IPPROTO_ICMPV6, 137), verdict(expr.VerdictDrop, ""))

	// The nodes take whatever packet comes through the tunnel for one of a pod
	// of another node. A pod that could send to it could send as any other.
	if c.TunnelPort != 0 {
		for name, hook := range map[string]*nftables.ChainHook{"tunnel-forward": nftables.ChainHookForward, "tunnel-input": nftables.ChainHookInput} {
			ch := chain(name, nftables.ChainTypeFilter, hook, nftables.ChainPriorityFilter)
			rule(ch, fromBridge(c.Bridge), udpTo(c.TunnelPort), verdict(expr.VerdictDrop, ""))
		}
	}
}

func family(v6 bool) []expr.Any {
	f := byte(unix.NFPROTO_IPV4)
	if v6 {
		f = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{f}},
	}
}

// toLocal matches what is sent to an address of this node.
func toLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg0, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// address loads the source or destination address into register reg.
func address(v6, source bool, reg uint32) *expr.Payload {
	p := &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if v6 {
		p.Offset, p.Len = 24, 16
	}
	if source {
		p.Offset -= p.Len
	}
	return p
}

func to(p netip.Prefix) []expr.Any   { return within(p, false) }
func from(p netip.Prefix) []expr.Any { return within(p, true) }

func within(p netip.Prefix, source bool) []expr.Any {
	p = p.Masked()
	n := ipnet(p.Addr(), p.Bits())
	width := uint32(len(n.Mask))
	return []expr.Any{
		address(p.Addr().Is6(), source, reg0),
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: width, Mask: n.Mask, Xor: make([]byte, width)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: p.Addr().AsSlice()},
	}
}

// lookupPort looks the packet's port up and loads pod and port; a packet whose
// port is not there goes on to the next rule.
func lookupPort(s *nftables.Set, v6, withAddress bool) []expr.Any {
	reg := uint32(reg0)
	list := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}}
	reg++
	if withAddress {
		a := address(v6, false, reg)
		list = append(list, a)
		reg += a.Len / 4
	}
	return append(list,
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: s.Name, SetID: s.ID})
}

func dnat(v6 bool) []expr.Any {
	n := &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg0, RegProtoMin: reg0 + 1}
	if v6 {
		n.Family, n.RegProtoMin = unix.NFPROTO_IPV6, reg0+4
	}
	return []expr.Any{n}
}

// ownAddress matches a packet from a pod in the set to itself.
func ownAddress(s *nftables.Set, v6 bool) []expr.Any {
	source := address(v6, true, reg0)
	return []expr.Any{
		source,
		address(v6, false, reg0+source.Len/4),
		&expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{FullyRandom: true}} }

func throughBridge(name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: linkName(name)},
	}
}

func fromBridge(name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: linkName(name)},
	}
}

func udpTo(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

func icmpType(proto, kind byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{proto}},
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{kind}},
	}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

// publish adds the attachment's host ports.
func publish(c *Conf, a *Attachment) error {
	list := elements(a)
	if len(list) == 0 {
		return nil
	}
	err := change(c, list, (*nftables.Conn).SetAddElements)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("a host port of the pod is in use by another pod: %w", err)
	}
	return err
}

// unpublish takes them away, those of them that are there.
func unpublish(c *Conf, a *Attachment) error {
	list := elements(a)
	if len(list) == 0 {
		return nil
	}
	err := change(c, list, (*nftables.Conn).SetDeleteElements)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	// One that is missing undoes the batch: so, one by one.
	for _, e := range list {
		if err := change(c, []element{e}, (*nftables.Conn).SetDeleteElements); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func change(c *Conf, list []element, what func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	if err := c.changeSets(sets(tableOf(c.Table)), list, what); err != nil {
		return fmt.Errorf("host ports in nftables table %s: %w", c.Table, err)
	}
	return nil
}

func (c *Conf) changeSets(byName map[string]*nftables.Set, list []element, what func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	return c.kernel.with(func(conn *nftables.Conn) error {
		for _, e := range list {
			if err := what(conn, byName[e.set], []nftables.SetElement{setElement(e)}); err != nil {
				return fmt.Errorf("nftables set %s: %w", e.set, err)
			}
		}
		return conn.Flush()
	})
}

// tableExists reports whether the table is there, in both of its families.
func (c *Conf) tableExists() bool {
	return c.kernel.with(func(conn *nftables.Conn) error {
		for _, f := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
			if _, err := conn.ListTableOfFamily(c.Table, f); err != nil {
				return err
			}
		}
		return nil
	}) == nil
}

// RemoveTable removes the table, if it is there.
func RemoveTable(name string) error {
	for _, t := range []*nftables.Table{tableOf(name), guardTable(name)} {
		conn, err := nft.Open()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		conn.AddTable(t)
		conn.DelTable(t)
		if err := conn.Flush(); err != nil && !(t.Family == nftables.TableFamilyBridge && noFamily(err)) {
			return fmt.Errorf("remove nftables table %s: %w", name, err)
		}
	}
	return nil
}

// noFamily says that this kernel has no tables of that family, and so never had
// the one to remove.
func noFamily(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT)
}
