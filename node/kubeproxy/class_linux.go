package kubeproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A class is what Services have in common that their connections are treated by
// the same chain: the number of endpoints, since numgen's modulus is a constant
// of a rule, and the rest. Numbers of endpoints differ less than Services do: of
// n endpoints in all, at most √2n are different.
type class struct {
	count uint32
	kind
}

// A kind is all of a class but the number of endpoints.
type kind struct {
	via        via
	masquerade Masquerade
	affinity   int32
	shard      uint8 // which map has the clients, with affinity
}

// A via is the map in which a front is found.
type via uint8

const (
	viaAddress    via = iota
	viaNodePort       // by the port alone
	viaInside         // pods and this node reach all endpoints through it
	viaInsidePort     // the same by the port alone
	viaFirewall       // not to an endpoint: to who may connect
)

func (v via) nodePort() bool { return v == viaNodePort || v == viaInsidePort }

// The kinds of fronts without endpoints, of which there is no chain to spread
// connections. No other kind has this bit.
const (
	kindReject = 1<<31 + iota
	kindDrop
)

// number is the kind as the kernel's maps hold it. A timeout of affinity is a day
// at most, of 17 bits.
func (k kind) number() uint32 {
	return uint32(k.via) | uint32(k.masquerade)<<2 | uint32(k.shard)<<4 | uint32(k.affinity)&0x7fffff<<8
}

func (c class) key() []byte { return words(c.count, c.kind.number()) }

// words are 32-bit registers.
func words(all ...uint32) (b []byte) {
	for _, w := range all {
		b = append(b, binaryutil.NativeEndian.PutUint32(w)...)
	}
	return b
}

// chain is the name of a class's chain, readable for those who list them.
func (c class) chain(generation string) string {
	parts := []string{"spread", fmt.Sprint(c.count),
		[]string{"address", "node-port", "inside", "inside-port"}[c.via],
		[]string{"masquerade-outside", "masquerade-all", "masquerade-never"}[c.masquerade]}
	if c.affinity > 0 {
		parts = append(parts, fmt.Sprintf("affinity-%d-%d", c.affinity, c.shard))
	}
	return strings.Join(parts, "-") + generation
}

// Registers of 32 bits, by their use. A rule starts with the front in the first
// of them, and looks up what follows from dataAt on: the pool, then the number
// of endpoints and kind, which a slot or an endpoint takes the place of.
const (
	frontAt = 0
	dataAt  = 6 // behind an IPv6 address, protocol and port
)

func word(n int) uint32 { return uint32(unix.NFT_REG32_00 + n) }

// addressWords is the number of registers of an address.
func (f *family) addressWords() int {
	if f.v6 {
		return 4
	}
	return 1
}

// find loads the front of a packet and looks up its data.
func (f *family) find(v via, dest int) []expr.Any {
	set, at := f.fronts(v), frontAt
	var exprs []expr.Any
	if !v.nodePort() {
		exprs = append(exprs, f.load(false, word(at)))
		at += f.addressWords()
	}
	return append(exprs,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: word(at)},
		&expr.Payload{DestRegister: word(at + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		lookup(set, frontAt, dest))
}

// fronts is the map of a via.
func (f *family) fronts(v via) *nftables.Set {
	return []*nftables.Set{f.services, f.nodePorts, f.inside, f.insidePorts, f.firewall}[v]
}

func lookup(set *nftables.Set, key, dest int) expr.Any {
	return &expr.Lookup{SourceRegister: word(key), DestRegister: word(dest), IsDestRegSet: true, SetName: set.Name, SetID: set.ID}
}

func member(set *nftables.Set, key int, not bool) expr.Any {
	return &expr.Lookup{SourceRegister: word(key), SetName: set.Name, SetID: set.ID, Invert: not}
}

// dispatch leads a packet with a front in a map to the chain of its class.
func (f *family) dispatch(v via, classes *nftables.Set) []expr.Any {
	return append(f.find(v, dataAt), &expr.Lookup{SourceRegister: word(dataAt + 1), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: classes.Name, SetID: classes.ID})
}

// classRules are the rules of a class's chain.
func (f *family) classRules(c class) (rules [][]expr.Any) {
	if mark := f.mark(c.masquerade); mark != nil {
		rules = append(rules, mark)
	}
	// An endpoint lies where the front was, or behind the pool.
	nat := func(at int) expr.Any {
		return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nf), RegAddrMin: word(at), RegProtoMin: word(at + f.addressWords()), Specified: true}
	}
	pick := append(f.find(c.via, dataAt),
		&expr.Numgen{Register: word(dataAt + 1), Modulus: c.count, Type: unix.NFT_NG_RANDOM},
		lookup(f.endpoints, dataAt, frontAt))
	if c.affinity > 0 {
		rules = append(rules, f.affinityRules(c, pick, nat)...)
	}
	// Between the lookups of one packet the rules may change. The first slot is
	// there as long as there is an endpoint.
	first := append(f.find(c.via, dataAt),
		&expr.Immediate{Register: word(dataAt + 1), Data: words(0)},
		lookup(f.endpoints, dataAt, frontAt))
	return append(rules, append(pick, nat(frontAt)), append(first, nat(frontAt)))
}

// dynsetDelete is NFT_DYNSET_OP_DELETE.
const dynsetDelete = 2

// affinityRules lead a client to the endpoint that it had before, if that still
// lives, and remember the one that it gets.
func (f *family) affinityRules(c class, pick []expr.Any, nat func(int) expr.Any) [][]expr.Any {
	keep := time.Duration(c.affinity) * time.Second
	clients := f.clients[c.shard]
	remember := func(op uint32, client, endpoint int) expr.Any {
		d := &expr.Dynset{SrcRegKey: word(client), SrcRegData: word(endpoint), SetName: clients.Name, SetID: clients.ID, Operation: op}
		if op != dynsetDelete {
			d.Timeout = keep
		}
		return d
	}
	// The pool is looked up twice: once with the client behind it, and once with
	// the endpoint that is found by that.
	const client, endpoint = frontAt, dataAt + 1
	before := slices.Concat(f.find(c.via, dataAt), f.find(c.via, frontAt), []expr.Any{
		f.load(true, word(frontAt+1)),
		lookup(clients, client, endpoint)})
	return [][]expr.Any{
		append(slices.Clone(before), member(f.living, dataAt, false), remember(unix.NFT_DYNSET_OP_UPDATE, client, endpoint), nat(endpoint)),
		append(slices.Clone(before), member(f.living, dataAt, true), remember(dynsetDelete, client, endpoint)),
		// A map that is full ends this rule, and the next one picks again.
		append(slices.Clone(pick), f.load(true, word(dataAt+1)), remember(unix.NFT_DYNSET_OP_ADD, dataAt, frontAt), nat(frontAt)),
	}
}

// mark asks for masquerading after routing.
func (f *family) mark(m Masquerade) []expr.Any {
	mark := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0)},
		&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: 4, Mask: words(^uint32(masqueradeMark)), Xor: words(masqueradeMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0), SourceRegister: true},
	}
	var outside []expr.Any
	switch m {
	case MasqueradeAll:
		return mark
	case MasqueradeOutside:
		for _, p := range f.cluster {
			outside = append(append(outside, f.load(true, word(0))), f.within(p, expr.CmpOpNeq)...)
		}
		if len(outside) > 0 {
			return append(outside, mark...)
		}
	}
	return nil
}
