package network

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// Accept is a rule, for a table of a family, that accepts what comes from addresses of a
// range, or goes to them.
func Accept(table nftables.TableFamily, p netip.Prefix, source bool) []expr.Any {
	return accepted(table, p, within(p, source))
}

// AcceptFromPods is one that accepts what pods of a range send to a port at the bridge's
// own address.
func AcceptFromPods(table nftables.TableFamily, bridge string, p netip.Prefix, proto byte, port uint16) []expr.Any {
	at := gateway(p)
	match := append(fromBridge(bridge), within(netip.PrefixFrom(at, at.BitLen()), false)...)
	return accepted(table, p, append(match,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{proto}},
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.BigEndian.PutUint16(port)}))
}

// accepted completes a rule in the form that iptables reads: it counts.
func accepted(table nftables.TableFamily, p netip.Prefix, match []expr.Any) (rule []expr.Any) {
	if table == nftables.TableFamilyINet {
		rule = family(p.Addr().Is6())
	}
	return append(append(rule, match...), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
}
