package dev

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"knarr/node/cni"
)

// ensureFirewall says in one nftables table what may leave the cluster's bridge:
// nothing, or with outside everything, under this host's address.
func (c *Cluster) ensureFirewall(s state) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: c.table(), Family: nftables.TableFamilyIPv4}
	conn.AddTable(t) // so that there is one to delete
	conn.DelTable(t)
	conn.AddTable(t)
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		conn.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: all})
	}
	if s.Outside {
		post := conn.AddChain(&nftables.Chain{Table: t, Name: "leaving", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		rule(post, address(s.Hosts, true, expr.CmpOpEq), link(expr.MetaKeyOIFNAME, c.bridge(), expr.CmpOpNeq), []expr.Any{&expr.Masq{}})
	} else {
		in := conn.AddChain(&nftables.Chain{Table: t, Name: "staying", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
		rule(in, link(expr.MetaKeyIIFNAME, c.bridge(), expr.CmpOpNeq), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
		for _, p := range []netip.Prefix{s.Hosts, s.Pods} { // where bridges filter, the nodes' own traffic passes here
			rule(in, address(p, false, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
		}
		// Refused at once: what waits for an answer from outside waits in vain.
		rule(in, []expr.Any{
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
			&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 13},
		})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", c.table(), err)
	}
	if !s.Outside {
		return nil
	}
	return cni.Forward(c.dir, []netip.Prefix{s.Hosts})
}

// removeFirewall takes the table away and puts the switch back.
func (c *Cluster) removeFirewall(s state) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: c.table(), Family: nftables.TableFamilyIPv4}
	conn.AddTable(t)
	conn.DelTable(t)
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
	offset := uint32(16)
	if source {
		offset = 12
	}
	n := ipnet(p.Masked().Addr(), p.Bits())
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: n.Mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: n.IP},
	}
}
