package kubeproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is the table of one address family. Its sets and chains are those of a
// generation, which a rebuild fills beside the one that packets use.
type family struct {
	name    string
	nf      nftables.TableFamily
	v6      bool
	cluster []netip.Prefix
	// Node ports are at this node's addresses in these, or at its Node's.
	nodePortsIn     []netip.Prefix
	nodePortsByNode bool

	own     *changes // learns which changes are this proxy's
	conn    *nftables.Conn
	metrics *metrics

	table      *nftables.Table
	generation string
	filling    bool // packets do not use it yet
	// The fronts, by via: each leads to a pool and a class.
	services, nodePorts, inside, insidePorts *nftables.Set
	classSet, endpoints, living              *nftables.Set
	hairpin, clusterSet, nodeSet             *nftables.Set
	firewall, ranges                         *nftables.Set
	clients                                  [shards]*nftables.Set // of no generation

	state
}

// Affinity remembers so many clients in each of so many maps: a client of one
// Service that fills its map leaves room in the others.
const (
	maxClients = 1 << 16
	shards     = 16
)

// The names of what a generation has, less its number.
const (
	rejectChain = "reject"
	// clientsName changes with the layout of the maps of clients, which outlive
	// the process.
	clientsName = "clients-1-"
)

// types are the layouts of keys and data.
type types struct{ address, endpoint, front, port, data, slot, client, living, class nftables.SetDatatype }

func (f *family) types() (t types) {
	concat := func(types ...nftables.SetDatatype) nftables.SetDatatype {
		t, err := nftables.ConcatSetType(types...)
		if err != nil {
			panic(err) // a constant combination
		}
		return t
	}
	t.address = nftables.TypeIPAddr
	if f.v6 {
		t.address = nftables.TypeIP6Addr
	}
	number := nftables.TypeMark // a word of this machine's byte order
	t.endpoint = concat(t.address, nftables.TypeInetService)
	t.front = concat(t.address, nftables.TypeInetProto, nftables.TypeInetService)
	t.port = concat(nftables.TypeInetProto, nftables.TypeInetService)
	t.data = concat(number, number, number)
	t.slot = concat(number, number)
	t.class = concat(number, number)
	t.client = concat(number, t.address)
	t.living = concat(number, t.address, nftables.TypeInetService)
	return t
}

// setID is that of every set: the library's own counter is not for several
// goroutines, and the kernel finds sets by their names.
const setID = 1 << 30

// addSets makes the empty sets and the chains of a new generation. Nothing leads
// to them yet.
func (f *family) addSets(c *nftables.Conn) error {
	t := f.types()
	var errs []error
	set := func(name string, key nftables.SetDatatype, data ...nftables.SetDatatype) *nftables.Set {
		s := &nftables.Set{ID: setID, Table: f.table, Name: name + f.generation, KeyType: key, Concatenation: true}
		if len(data) > 0 {
			s.IsMap, s.DataType = true, data[0]
		}
		errs = append(errs, c.AddSet(s, nil))
		return s
	}
	f.services = set("services", t.front, t.data)
	f.nodePorts = set("node-ports", t.port, t.data)
	f.inside = set("inside", t.front, t.data)
	f.insidePorts = set("inside-ports", t.port, t.data)
	f.classSet = set("classes", t.class, nftables.TypeVerdict)
	f.endpoints = set("endpoints", t.slot, t.endpoint)
	f.living = set("living", t.living)
	f.hairpin = set("hairpin", func() nftables.SetDatatype {
		pair, err := nftables.ConcatSetType(t.address, t.address)
		errs = append(errs, err)
		return pair
	}())
	f.firewall = set("firewall", t.front, t.data)
	f.ranges = &nftables.Set{ID: setID, Table: f.table, Name: "ranges" + f.generation, KeyType: t.client, Concatenation: true, Interval: true}
	f.clusterSet = &nftables.Set{ID: setID, Table: f.table, Name: "cluster-ips" + f.generation, KeyType: t.address}
	f.nodeSet = &nftables.Set{ID: setID, Table: f.table, Name: "node-addresses" + f.generation, KeyType: t.address}
	errs = append(errs, c.AddSet(f.ranges, nil), c.AddSet(f.clusterSet, nil), c.AddSet(f.nodeSet, nil))
	for i := range f.clients {
		f.clients[i] = &nftables.Set{
			ID: setID, Table: f.table, Name: fmt.Sprint(clientsName, i), Concatenation: true, IsMap: true, Dynamic: true, HasTimeout: true,
			KeyType: t.client, DataType: t.endpoint, Size: maxClients,
		}
		errs = append(errs, c.AddSet(f.clients[i], nil))
	}
	return errors.Join(append(errs, f.addRefusals(c))...)
}

// addRefusals makes the chain that rejects, and what leads there.
func (f *family) addRefusals(c *nftables.Conn) error {
	reject := c.AddChain(&nftables.Chain{Name: rejectChain + f.generation, Table: f.table})
	code := uint8(3) // port unreachable: the client's connect fails at once
	if f.v6 {
		code = 4
	}
	c.AddRule(&nftables.Rule{Table: f.table, Chain: reject, Exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}})
	return nil
}

// A hook is a chain where packets enter the table, with its rules.
type hook struct {
	name     string
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	kind     nftables.ChainType
	rules    [][]expr.Any
}

func (f *family) hooks() []hook {
	look := f.lookups()
	early := before(nftables.ChainPriorityNATDest)
	return []hook{
		{"prerouting-early", nftables.ChainHookPrerouting, early, nftables.ChainTypeFilter, look.firewall},
		{"output-early", nftables.ChainHookOutput, early, nftables.ChainTypeFilter, look.firewall},
		{"prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, look.arriving},
		{"output-nat", nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, look.leaving},
		{"postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, look.masquerade},
		{"input", nftables.ChainHookInput, early, nftables.ChainTypeFilter, look.refused},
		{"forward", nftables.ChainHookForward, early, nftables.ChainTypeFilter, append(look.refused, look.strayed...)},
		// After output-nat: what it has led to an endpoint is not refused.
		{"output-late", nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter, append(look.refused, look.strayed...)},
	}
}

// enter has packets use this generation, in place of any other.
func (f *family) enter(c *nftables.Conn) {
	for _, h := range f.hooks() {
		ch := c.AddChain(&nftables.Chain{Name: h.name, Table: f.table, Type: h.kind, Hooknum: h.hook, Priority: h.priority})
		c.FlushChain(ch)
		for _, r := range h.rules {
			c.AddRule(&nftables.Rule{Table: f.table, Chain: ch, Exprs: r})
		}
	}
}

func before(p *nftables.ChainPriority) *nftables.ChainPriority {
	return nftables.ChainPriorityRef(*p - 10)
}

type lookups struct {
	firewall, arriving, leaving, masquerade, refused, strayed [][]expr.Any
}

func (f *family) lookups() (l lookups) {
	isNew := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: word(0)},
		&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: 4, Mask: words(expr.CtStateBitNEW), Xor: words(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: word(0), Data: words(0)},
	}
	// What comes from pods or this node reaches all endpoints, whatever the
	// policy for connections from elsewhere.
	ports := func(v via, from []expr.Any) (rules [][]expr.Any) {
		for _, here := range f.nodePort() {
			rules = append(rules, slices.Concat(from, here, f.dispatch(v, f.classSet)))
		}
		return rules
	}
	for _, p := range f.cluster {
		pod := append([]expr.Any{f.load(true, word(0))}, f.within(p, expr.CmpOpEq)...)
		l.arriving = append(l.arriving, slices.Concat(pod, f.dispatch(viaInside, f.classSet)))
		l.arriving = append(l.arriving, ports(viaInsidePort, pod)...)
	}
	all := append([][]expr.Any{f.dispatch(viaAddress, f.classSet)}, ports(viaNodePort, nil)...)
	l.arriving = append(l.arriving, all...)
	l.leaving = slices.Concat([][]expr.Any{f.dispatch(viaInside, f.classSet)}, ports(viaInsidePort, nil), all)
	// Who is not in the ranges of a load balancer's address gets no answer.
	l.firewall = [][]expr.Any{slices.Concat(isNew, f.find(viaFirewall, dataAt), []expr.Any{
		f.load(true, word(dataAt+1)), member(f.ranges, dataAt, true), &expr.Verdict{Kind: expr.VerdictDrop}})}
	l.masquerade = f.masqueradeRules()
	l.refused = slices.Concat(f.refusals(isNew, viaAddress), f.refusals(isNew, viaNodePort))
	// What is still on its way to a Service's own address has asked for a
	// port that the Service does not have, and would leave the node.
	l.strayed = [][]expr.Any{slices.Concat(isNew, []expr.Any{f.load(false, word(0)), member(f.clusterSet, 0, false),
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: rejectChain + f.generation}}),
		// An address of the Services' ranges that no Service has.
		slices.Concat(isNew, []expr.Any{&expr.Immediate{Register: word(0), Data: words(0)}, f.load(false, word(1)),
			member(f.ranges, 0, false), &expr.Verdict{Kind: expr.VerdictDrop}})}
	return l
}

// nodePort goes on for packets to this node's addresses where node ports are, by
// one rule or several. Loopback is never one of them: making that routable would
// open it to the network (CVE-2020-8558).
func (f *family) nodePort() (rules [][]expr.Any) {
	if f.nodePortsByNode {
		return [][]expr.Any{{f.load(false, word(0)), member(f.nodeSet, 0, false)}}
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if f.v6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	for _, p := range f.nodePortsIn {
		here := []expr.Any{
			&expr.Fib{Register: word(0), FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: word(0), Data: words(unix.RTN_LOCAL)},
			f.load(false, word(0)),
		}
		here = append(append(here, f.within(loopback, expr.CmpOpNeq)...), f.load(false, word(0)))
		rules = append(rules, append(here, f.within(p, expr.CmpOpEq)...))
	}
	return rules
}

// refusals end connections to fronts without endpoints.
func (f *family) refusals(isNew []expr.Any, v via) (rules [][]expr.Any) {
	for _, r := range []struct {
		kind    uint32
		verdict expr.Any
	}{
		{kindReject, &expr.Verdict{Kind: expr.VerdictGoto, Chain: rejectChain + f.generation}},
		{kindDrop, &expr.Verdict{Kind: expr.VerdictDrop}},
	} {
		places := [][]expr.Any{nil}
		if v.nodePort() {
			places = f.nodePort()
		}
		for _, place := range places {
			rules = append(rules, slices.Concat(isNew, place, f.find(v, dataAt),
				[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: word(dataAt + 2), Data: words(r.kind)}, r.verdict}))
		}
	}
	return rules
}

func (f *family) masqueradeRules() [][]expr.Any {
	return [][]expr.Any{
		{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0)},
			&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: 4, Mask: words(masqueradeMark), Xor: words(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: word(0), Data: words(masqueradeMark)},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0)},
			&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: 4, Mask: words(^uint32(masqueradeMark)), Xor: words(0)},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0), SourceRegister: true},
			&expr.Masq{FullyRandom: true},
		},
		{
			f.load(true, word(0)),
			f.load(false, word(f.addressWords())),
			member(f.hairpin, 0, false),
			&expr.Masq{FullyRandom: true},
		},
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

// within goes on when the address in the first registers is in p, or with not
// equal when it is not. It changes them.
func (f *family) within(p netip.Prefix, op expr.CmpOp) []expr.Any {
	size := p.Addr().BitLen() / 8
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: uint32(size), Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: op, Register: word(0), Data: p.Masked().Addr().AsSlice()},
	}
}
