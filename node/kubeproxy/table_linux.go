package kubeproxy

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is the table of one address family.
type family struct {
	name    string
	nf      nftables.TableFamily
	v6      bool
	cluster []netip.Prefix

	table                                      *nftables.Table
	services, nodePorts, refused, refusedPorts *nftables.Set
	hairpin, clusterIPs                        *nftables.Set
	endpoint                                   nftables.SetDatatype // address . port
	address                                    nftables.SetDatatype
}

const rejectChain = "reject"

// Registers: a key or an endpoint starts in register 1; what follows an address
// in it lies in the next 32-bit register, another for IPv6.
const (
	reg   = 1
	reg32 = unix.NFT_REG32_00
	other = 3 // a client's address beside an endpoint
)

func (f *family) after(words int) uint32 {
	if f.v6 {
		words += 3
	}
	return uint32(reg32 + words)
}

// base makes the table anew with everything that belongs to no Service.
func (f *family) base(c *nftables.Conn) error {
	f.table = c.AddTable(&nftables.Table{Name: f.name, Family: f.nf})
	c.DelTable(f.table)
	f.table = c.AddTable(&nftables.Table{Name: f.name, Family: f.nf})
	f.address = nftables.TypeIPAddr
	if f.v6 {
		f.address = nftables.TypeIP6Addr
	}
	concat := func(types ...nftables.SetDatatype) nftables.SetDatatype {
		t, err := nftables.ConcatSetType(types...)
		if err != nil {
			panic(err) // a constant combination
		}
		return t
	}
	f.endpoint = concat(f.address, nftables.TypeInetService)
	front := concat(f.address, nftables.TypeInetProto, nftables.TypeInetService)
	number := concat(nftables.TypeInetProto, nftables.TypeInetService)
	var errs []error
	set := func(name string, key nftables.SetDatatype, verdicts bool) *nftables.Set {
		s := &nftables.Set{Table: f.table, Name: name, KeyType: key, Concatenation: true}
		if verdicts {
			s.IsMap, s.DataType = true, nftables.TypeVerdict
		}
		errs = append(errs, c.AddSet(s, nil))
		return s
	}
	f.services = set("services", front, true)
	f.nodePorts = set("node-ports", number, true)
	f.refused = set("refused", front, true)
	f.refusedPorts = set("refused-ports", number, true)
	f.hairpin = set("hairpin", concat(f.address, f.address), false)
	f.clusterIPs = &nftables.Set{Table: f.table, Name: "cluster-ips", KeyType: f.address}
	errs = append(errs, c.AddSet(f.clusterIPs, nil))

	reject := c.AddChain(&nftables.Chain{Name: rejectChain, Table: f.table})
	code := uint8(3) // port unreachable: the client's connect fails at once
	if f.v6 {
		code = 4
	}
	c.AddRule(&nftables.Rule{Table: f.table, Chain: reject, Exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}})

	look := f.lookups()
	for _, h := range []struct {
		name     string
		hook     *nftables.ChainHook
		priority *nftables.ChainPriority
		kind     nftables.ChainType
		rules    [][]expr.Any
	}{
		{"prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, look.nat},
		{"output-nat", nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, look.nat},
		{"postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, look.masquerade},
		{"input", nftables.ChainHookInput, before(nftables.ChainPriorityNATDest), nftables.ChainTypeFilter, look.refusedPorts},
		{"forward", nftables.ChainHookForward, before(nftables.ChainPriorityNATDest), nftables.ChainTypeFilter, append(look.refused, look.strayed...)},
		{"output", nftables.ChainHookOutput, before(nftables.ChainPriorityNATDest), nftables.ChainTypeFilter, append(look.refused, look.refusedPorts...)},
		{"output-late", nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter, look.strayed},
	} {
		ch := c.AddChain(&nftables.Chain{Name: h.name, Table: f.table, Type: h.kind, Hooknum: h.hook, Priority: h.priority})
		for _, r := range h.rules {
			c.AddRule(&nftables.Rule{Table: f.table, Chain: ch, Exprs: r})
		}
	}
	return errors.Join(errs...)
}

func before(p *nftables.ChainPriority) *nftables.ChainPriority {
	return nftables.ChainPriorityRef(*p - 10)
}

type lookups struct{ nat, masquerade, refused, refusedPorts, strayed [][]expr.Any }

func (f *family) lookups() lookups {
	toVerdict := func(s *nftables.Set) expr.Any {
		return &expr.Lookup{SourceRegister: reg, DestRegister: 0, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}
	}
	front := []expr.Any{
		f.load(false, reg),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: f.after(1)},
		&expr.Payload{DestRegister: f.after(2), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	// Node ports are those of this node's addresses, loopback excepted: making
	// that routable would open it to the network (CVE-2020-8558).
	local := []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		f.load(false, reg),
	}
	local = append(local, f.differs(f.loopback())...)
	number := append(local,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{DestRegister: reg32 + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	isNew := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
	mark := binaryutil.NativeEndian.PutUint32
	return lookups{
		nat: [][]expr.Any{
			append(slices.Clone(front), toVerdict(f.services)),
			append(slices.Clone(number), toVerdict(f.nodePorts)),
		},
		masquerade: [][]expr.Any{
			{
				&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
				&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: mark(masqueradeMark), Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: mark(masqueradeMark)},
				&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
				&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: mark(^uint32(masqueradeMark)), Xor: make([]byte, 4)},
				&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
				&expr.Masq{FullyRandom: true},
			},
			{
				f.load(true, reg),
				f.load(false, f.after(1)),
				&expr.Lookup{SourceRegister: reg, SetName: f.hairpin.Name, SetID: f.hairpin.ID},
				&expr.Masq{FullyRandom: true},
			},
		},
		refused:      [][]expr.Any{slices.Concat(isNew, front, []expr.Any{toVerdict(f.refused)})},
		refusedPorts: [][]expr.Any{slices.Concat(isNew, number, []expr.Any{toVerdict(f.refusedPorts)})},
		// What is still on its way to a Service's own address has asked for a
		// port that the Service does not have, and would leave the node.
		strayed: [][]expr.Any{slices.Concat(isNew, []expr.Any{f.load(false, reg),
			&expr.Lookup{SourceRegister: reg, SetName: f.clusterIPs.Name, SetID: f.clusterIPs.ID},
			&expr.Verdict{Kind: expr.VerdictGoto, Chain: rejectChain}})},
	}
}

// load puts the packet's source or destination address into a register.
func (f *family) load(source bool, register uint32) expr.Any {
	offset, size := uint32(16), uint32(4)
	if f.v6 {
		offset, size = 24, 16
	}
	if source {
		offset -= size
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

func (f *family) loopback() netip.Prefix {
	if f.v6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// differs goes on only when the address in reg is outside p. It changes reg.
func (f *family) differs(p netip.Prefix) []expr.Any {
	size := p.Addr().BitLen() / 8
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(size), Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: p.Masked().Addr().AsSlice()},
	}
}

func affinityName(chain string) string { return "a-" + chain }

// chain makes or replaces the rules of one chain.
func (t *transaction) chain(name string, ch Chain, had bool, old Chain) {
	f, c := t.f, t.c
	chain := c.AddChain(&nftables.Chain{Name: name, Table: f.table})
	if had {
		c.FlushChain(chain)
		if old.Affinity > 0 {
			c.DelSet(&nftables.Set{Table: f.table, Name: affinityName(name)})
		}
		if ch.UDP {
			t.removed(old.Endpoints, ch.Endpoints)
		}
	}
	rule := func(exprs ...expr.Any) { c.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: exprs}) }
	mark := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^uint32(masqueradeMark)), Xor: binaryutil.NativeEndian.PutUint32(masqueradeMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}
	switch ch.Masquerade {
	case MasqueradeAll:
		rule(mark...)
	case MasqueradeOutside:
		var outside []expr.Any
		for _, p := range f.cluster {
			outside = append(append(outside, f.load(true, reg)), f.differs(p)...)
		}
		if len(outside) > 0 {
			rule(append(outside, mark...)...)
		}
	}
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nf), RegAddrMin: reg, RegProtoMin: f.after(1), Specified: true}
	pick := []expr.Any{&expr.Numgen{Register: reg, Modulus: uint32(len(ch.Endpoints)), Type: unix.NFT_NG_RANDOM}}
	backends := &nftables.Set{Table: f.table, Anonymous: true, Constant: true, IsMap: true, KeyType: nftables.TypeInteger, DataType: f.endpoint}
	elements := make([]nftables.SetElement, len(ch.Endpoints))
	for i, ep := range ch.Endpoints {
		elements[i] = nftables.SetElement{
			Key: binaryutil.NativeEndian.PutUint32(uint32(i)),
			Val: slices.Concat(ep.Addr().AsSlice(), port(ep.Port())),
		}
	}
	t.err = errors.Join(t.err, c.AddSet(backends, elements))
	pick = append(pick, &expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: backends.Name, SetID: backends.ID})
	if ch.Affinity > 0 {
		keep := time.Duration(ch.Affinity) * time.Second
		clients := &nftables.Set{
			Table: f.table, Name: affinityName(name), IsMap: true, Dynamic: true, HasTimeout: true, Timeout: keep,
			KeyType: f.address, DataType: f.endpoint, Size: 65536,
		}
		t.err = errors.Join(t.err, c.AddSet(clients, nil))
		again := func(op uint32) expr.Any {
			return &expr.Dynset{SrcRegKey: other, SrcRegData: reg, SetName: clients.Name, SetID: clients.ID, Operation: op, Timeout: keep}
		}
		rule(f.load(true, other),
			&expr.Lookup{SourceRegister: other, DestRegister: reg, IsDestRegSet: true, SetName: clients.Name, SetID: clients.ID},
			again(unix.NFT_DYNSET_OP_UPDATE), nat)
		pick = append(pick, f.load(true, other), again(unix.NFT_DYNSET_OP_ADD))
	}
	rule(append(pick, nat)...)
}
