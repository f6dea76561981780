package networkpolicy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// The table, whose chains and sets of one generation have names that begin alike,
// so that a new generation is filled beside the one in force and takes its place
// at once, however large it is:
//
//	new4, new6               addresses of new pods, of all generations
//	G-ingress4, G-ingress6   map address ─► chain of pods     the same for egress
//	G-own4, G-own6           address . address of this node's pods
//	G-pods-…4, 6             addresses that a selector matches
//	G-named-ports-…4, 6      address . protocol . port
//	G-blocks-…4, 6           ranges of addresses
//	G-ports-…                ranges of protocol . port
//	G-egress, G-ingress      base chains, in this order
//	G-pods-ingress-…         jumps to policies, then drop
//	G-policy-ingress-…       accepts
const (
	// NewPods4 and NewPods6 are sets of addresses of new pods with comments that
	// say which. The pod network adds to them before a pod has its link; nothing
	// new passes to or from what is in them, and the kernel takes it out again.
	NewPods4 = "new4"
	NewPods6 = "new6"
	// ClosedFor is when.
	ClosedFor = 2 * time.Second
)

// reg is where a key begins; registers have four bytes.
const reg = unix.NFT_REG32_00

var families = []bool{false, true} // IPv6 or not

func suffix(v6 bool) string {
	if v6 {
		return "6"
	}
	return "4"
}

func addressType(v6 bool) nftables.SetDatatype {
	if v6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// words is how many registers an address takes.
func words(v6 bool) uint32 {
	if v6 {
		return 4
	}
	return 1
}

// newPods is the set of addresses of new pods.
func newPods(t *nftables.Table, v6 bool) *nftables.Set {
	return &nftables.Set{Table: t, Name: "new" + suffix(v6), KeyType: addressType(v6), HasTimeout: true, Timeout: ClosedFor}
}

// set is one of a generation's sets in one family; sets of ports have none.
func (k *kernel) set(id string, kind Kind, v6 bool) *nftables.Set {
	concat := nftables.MustConcatSetType
	s := &nftables.Set{Table: k.table, Name: k.generation + id + suffix(v6)}
	switch a := addressType(v6); kind {
	case Addresses:
		s.KeyType = a
	case Own:
		s.KeyType = concat(a, a)
	case NamedPorts:
		s.KeyType = concat(a, nftables.TypeInetProto, nftables.TypeInetService)
	case Blocks:
		s.KeyType, s.Interval = a, true
	case Ports:
		s.Name = k.generation + id
		s.KeyType, s.Interval, s.Concatenation = concat(nftables.TypeInetProto, nftables.TypeInetService), true, true
	}
	return s
}

// verdictMap is the map of one direction and family.
func (k *kernel) verdictMap(d Direction, v6 bool) *nftables.Set {
	return &nftables.Set{Table: k.table, Name: k.generation + d.String() + suffix(v6), IsMap: true, KeyType: addressType(v6), DataType: nftables.TypeVerdict}
}

func (k *kernel) chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: k.table, Name: k.generation + name}
}

// baseChains hooks a generation in: where packets are forwarded, after the
// addresses of Services and host ports have been replaced by pods'. What the node
// itself sends and receives does not come here.
func (k *kernel) baseChains() {
	for _, d := range []Direction{Egress, Ingress} {
		ch := k.chain(d.String())
		ch.Type, ch.Hooknum = nftables.ChainTypeFilter, nftables.ChainHookForward
		// Before the host's own filters. What a chain accepts goes on to the next.
		ch.Priority = nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10 + nftables.ChainPriority(1-d))
		k.conn.AddChain(ch)
		rule := func(parts ...[]expr.Any) {
			k.conn.AddRule(&nftables.Rule{Table: k.table, Chain: ch, Exprs: slices.Concat(parts...)})
		}
		if d == Egress {
			// The kernel does forward link-local addresses between pods of one bridge,
			// and no map has them.
			for _, source := range []bool{true, false} {
				rule(isFamily(true), linkLocal(source), verdict(expr.VerdictDrop, ""))
			}
		}
		rule(connected(), verdict(expr.VerdictAccept, ""))
		for _, v6 := range families {
			rule(isFamily(v6), []expr.Any{address(v6, true, reg), address(v6, false, reg+words(v6))}, k.lookup(ownSet+suffix(v6)), verdict(expr.VerdictAccept, ""))
			// The pod's own address: that of the sender on its way out.
			mine := []expr.Any{address(v6, d == Egress, reg)}
			rule(isFamily(v6), mine, []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: newPods(k.table, v6).Name}}, verdict(expr.VerdictDrop, ""))
			rule(isFamily(v6), mine, []expr.Any{&expr.Lookup{SourceRegister: reg, DestRegister: 0, IsDestRegSet: true, SetName: k.verdictMap(d, v6).Name}})
		}
	}
}

// linkLocal matches fe80::/10 as the sender or the receiver.
func linkLocal(source bool) []expr.Any {
	first := address(true, source, reg).(*expr.Payload)
	first.Len = 2
	return []expr.Any{
		first,
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 2, Mask: []byte{0xff, 0xc0}, Xor: []byte{0, 0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{0xfe, 0x80}},
	}
}

// connected matches packets of connections that were let through before, and
// what belongs to them.
func connected() []expr.Any {
	states := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: states, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

func isFamily(v6 bool) []expr.Any {
	f := byte(unix.NFPROTO_IPV4)
	if v6 {
		f = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f}},
	}
}

// address loads the sender's or the receiver's address.
func address(v6, source bool, register uint32) expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if v6 {
		p.Offset, p.Len = 24, 16
	}
	if source {
		p.Offset -= p.Len
	}
	return p
}

// protocolAndPort load the protocol and the receiver's port, which TCP, UDP and
// SCTP have at the same place.
func protocolAndPort(register uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Payload{DestRegister: register + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

func (k *kernel) lookup(id string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: k.generation + id}}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

// rules are those of a chain.
func (k *kernel) rules(ch *Chain) (all [][]expr.Any) {
	for _, j := range ch.Jumps {
		all = append(all, verdict(expr.VerdictJump, k.generation+j))
	}
	if ch.Jumps != nil {
		return append(all, verdict(expr.VerdictDrop, ""))
	}
	for _, m := range ch.Rules {
		all = append(all, k.match(ch.Direction, m)...)
	}
	return all
}

// match is one rule, or one for each family where addresses are looked at.
func (k *kernel) match(d Direction, m Match) (all [][]expr.Any) {
	ports := []expr.Any{}
	switch {
	case m.Port != nil:
		ports = portRange(*m.Port)
	case m.Ports != "":
		ports = append(protocolAndPort(reg), k.lookup(m.Ports)...)
	}
	accept := verdict(expr.VerdictAccept, "")
	if m.Peers == "" && m.Named == "" {
		return [][]expr.Any{slices.Concat(ports, accept)}
	}
	for _, v6 := range families {
		list := isFamily(v6)
		if m.Peers != "" {
			if k.without[m.Peers+suffix(v6)] {
				continue
			}
			list = append(append(list, address(v6, d == Ingress, reg)), k.lookup(m.Peers+suffix(v6))...)
		}
		if m.Named != "" {
			list = append(append(list, address(v6, false, reg)), protocolAndPort(reg+words(v6))...)
			list = append(list, k.lookup(m.Named+suffix(v6))...)
		}
		all = append(all, slices.Concat(list, ports, accept))
	}
	return all
}

func portRange(r PortRange) []expr.Any {
	list := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{r.Protocol}},
	}
	load := &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	number := binaryutil.BigEndian.PutUint16
	switch {
	case r.First == r.Last:
		return append(list, load, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: number(r.First)})
	case r.First == 0 && r.Last == 65535:
		return list
	}
	return append(list, load,
		&expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: number(r.First)},
		&expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: number(r.Last)})
}

// comment says in listings of the rules whose they are.
func comment(ch *Chain) []byte {
	text := ch.Policy.String()
	return userdata.AppendString(nil, userdata.TypeComment, text[:min(len(text), 200)])
}

// elements are the members of a set that come or go, in one family.
func elements(kind Kind, all map[Element]bool, v6, in bool) (list []nftables.SetElement) {
	for e, is := range all {
		if is != in || e.Addr.Is6() != v6 {
			continue
		}
		key := e.Addr.AsSlice()
		switch kind {
		case Own:
			key = append(key, key...)
		case NamedPorts:
			key = slices.Concat(key, []byte{e.Protocol, 0, 0, 0}, portKey(e.Port))
		}
		list = append(list, nftables.SetElement{Key: key})
	}
	return list
}

func portKey(n uint16) []byte { return append(binaryutil.BigEndian.PutUint16(n), 0, 0) }

// blockElements are ranges of one family: where each begins, and what is behind
// its end.
func blockElements(blocks []Range, v6 bool) (list []nftables.SetElement) {
	for _, r := range blocks {
		if r.First.Is6() != v6 {
			continue
		}
		list = append(list, nftables.SetElement{Key: r.First.AsSlice()})
		if next := r.Last.Next(); next.IsValid() {
			list = append(list, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	return list
}

func portElements(ports []PortRange) (list []nftables.SetElement) {
	for _, r := range ports {
		proto := []byte{r.Protocol, 0, 0, 0}
		list = append(list, nftables.SetElement{Key: slices.Concat(proto, portKey(r.First)), KeyEnd: slices.Concat(proto, portKey(r.Last))})
	}
	return list
}

func verdictElements(k *kernel, changes map[netip.Addr]Verdict, v6 bool) (gone, come []nftables.SetElement) {
	for a, v := range changes {
		if a.Is6() != v6 {
			continue
		}
		if v.Old != "" {
			gone = append(gone, nftables.SetElement{Key: a.AsSlice()})
		}
		if v.New != "" {
			come = append(come, nftables.SetElement{Key: a.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: k.generation + v.New}})
		}
	}
	return gone, come
}
