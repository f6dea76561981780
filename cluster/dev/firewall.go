package dev

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"knarr/internal/nft"
	"knarr/node/cni"
)

// ensureFirewall says in one nftables table of each family what may leave the cluster's
// bridge: nothing, or with outside everything, under this host's address.
func (c *Cluster) ensureFirewall(s state) error {
	conn, err := nft.Open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	var hosts []netip.Prefix
	for _, f := range s.families() {
		t := c.firewall(f)
		conn.AddTable(t) // so that there is one to delete
		conn.DelTable(t)
		conn.AddTable(t)
		c.addFirewall(conn, t, f, s.Outside)
		hosts = append(hosts, f.Hosts)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", c.table(), err)
	}
	if !s.Outside {
		return nil
	}
	return cni.Forward(c.dir, hosts)
}

func (c *Cluster) firewall(f family) *nftables.Table {
	t := &nftables.Table{Name: c.table(), Family: nftables.TableFamilyIPv4}
	if f.v6() {
		t.Family = nftables.TableFamilyIPv6
	}
	return t
}

func (c *Cluster) addFirewall(conn *nftables.Conn, t *nftables.Table, f family, outside bool) {
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		conn.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: all})
	}
	if outside {
		post := conn.AddChain(&nftables.Chain{Table: t, Name: "leaving", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		rule(post, address(f.Hosts, true, expr.CmpOpEq), link(expr.MetaKeyOIFNAME, c.bridge(), expr.CmpOpNeq), []expr.Any{&expr.Masq{}})
		return
	}
	in := conn.AddChain(&nftables.Chain{Table: t, Name: "staying", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
	rule(in, link(expr.MetaKeyIIFNAME, c.bridge(), expr.CmpOpNeq), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	stay, prohibited := []netip.Prefix{f.Hosts, f.Pods}, uint8(13) // where bridges filter, the nodes' own traffic passes here
	if f.v6() {
		stay, prohibited = append(stay, netip.MustParsePrefix("fe80::/10")), 1 // neighbours find each other so
	}
	for _, p := range stay {
		rule(in, address(p, false, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	}
	// Refused at once: what waits for an answer from outside waits in vain.
	rule(in, []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: prohibited},
	})
}

// removeFirewall takes the tables away and puts the switch back.
func (c *Cluster) removeFirewall(s state) error {
	conn, err := nft.Open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, f := range s.families() {
		t := c.firewall(f)
		conn.AddTable(t)
		conn.DelTable(t)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove nftables table %s: %w", c.table(), err)
	}
	if s.Outside {
		return cni.Unforward(c.dir)
	}
	return nil
}

func link(key expr.MetaKey, name string, op expr.CmpOp) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: padded}}
}

func address(p netip.Prefix, source bool, op expr.CmpOp) []expr.Any {
	offset, size := uint32(16), uint32(4)
	if p.Addr().Is6() {
		offset, size = 24, 16
	}
	if source {
		offset -= size
	}
	n := ipnet(p.Masked().Addr(), p.Bits())
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: n.Mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: op, Register: 1, Data: n.IP},
	}
}
