package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"knarr/internal/nft"
)

// masqueradeMark is the bit that asks for masquerading after routing.
const masqueradeMark = 0x4000

// A filter is the nftables table of one family: who is masqueraded on the way to a
// virtual server, and who may not connect.
type filter struct {
	name    string
	v6      bool
	cluster []netip.Prefix
	table   *nftables.Table
	sets    []*set
}

// A set is one of the table's, and the elements that the kernel has.
type set struct {
	*nftables.Set
	have map[string]nftables.SetElement
}

// The sets in the order of filter.sets.
const (
	outsideSet = iota
	alwaysSet
	refusedSet
	droppedSet
	limitedSet // who has an entry here needs one in allowedSet
	allowedSet
	hairpinSet
	numSets
)

var setNames = [numSets]string{"masquerade-outside", "masquerade-all", "refused", "dropped", "limited", "allowed", "hairpin"}

func newFilter(name string, v6 bool, cluster []netip.Prefix) *filter {
	f := &filter{name: name, v6: v6}
	for _, p := range cluster {
		if p.Addr().Is6() == v6 {
			f.cluster = append(f.cluster, p.Masked())
		}
	}
	return f
}

// setID is that of every set: the kernel finds sets by their names.
const setID = 1 << 30

// part is how many elements one message has: a list of them has a length of 16 bits.
const part = 256

// set makes the table's elements those of the plan; anew makes the table itself anew.
func (f *filter) set(w plan, anew bool) error {
	c, err := nft.Open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	if anew {
		if err := f.make(c); err != nil {
			return err
		}
	}
	for i, want := range f.elements(w) {
		s := f.sets[i]
		var gone, new []nftables.SetElement
		for key, e := range s.have {
			if _, stays := want[key]; !stays {
				gone = append(gone, e)
			}
		}
		for key, e := range want {
			if _, there := s.have[key]; !there {
				new = append(new, e)
			}
		}
		for some := range slices.Chunk(gone, part) {
			err = errors.Join(err, c.SetDeleteElements(s.Set, some))
		}
		for some := range slices.Chunk(new, part) {
			err = errors.Join(err, c.SetAddElements(s.Set, some))
		}
		s.have = want
	}
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		return fmt.Errorf("write nftables table %s: %w", f.name, err)
	}
	return nil
}

// make adds the table with its sets and rules, in place of one that may be there.
func (f *filter) make(c *nftables.Conn) error {
	family := nftables.TableFamilyIPv4
	address := nftables.TypeIPAddr
	if f.v6 {
		family, address = nftables.TableFamilyIPv6, nftables.TypeIP6Addr
	}
	f.table = c.AddTable(&nftables.Table{Name: f.name, Family: family})
	c.DelTable(f.table)
	f.table = c.AddTable(f.table)
	front := []nftables.SetDatatype{address, nftables.TypeInetProto, nftables.TypeInetService}
	f.sets = nil
	for i, name := range setNames {
		key := front
		switch i {
		case allowedSet:
			key = append(slices.Clone(front), address)
		case hairpinSet:
			key = []nftables.SetDatatype{address, address}
		}
		s := &nftables.Set{ID: setID, Table: f.table, Name: name, KeyType: nftables.MustConcatSetType(key...), Concatenation: true, Interval: i == allowedSet}
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("nftables set %s: %w", name, err)
		}
		f.sets = append(f.sets, &set{s, nil})
	}
	for _, h := range []struct {
		name     string
		hook     *nftables.ChainHook
		priority *nftables.ChainPriority
		kind     nftables.ChainType
		rules    [][]expr.Any
	}{
		{"prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityMangle, nftables.ChainTypeFilter, f.marks()},
		{"output", nftables.ChainHookOutput, nftables.ChainPriorityMangle, nftables.ChainTypeFilter, f.marks()},
		{"input", nftables.ChainHookInput, nftables.ChainPriorityMangle, nftables.ChainTypeFilter, f.refusals()},
		{"postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, f.masquerades()},
	} {
		chain := c.AddChain(&nftables.Chain{Name: h.name, Table: f.table, Type: h.kind, Hooknum: h.hook, Priority: h.priority})
		for _, r := range h.rules {
			c.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: r})
		}
	}
	return nil
}

func (f *filter) intact() error {
	c, err := nft.Open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	if _, err := c.GetSetByName(f.table, setNames[hairpinSet]); err != nil {
		return fmt.Errorf("nftables table %s: %w", f.name, err)
	}
	return nil
}

// elements are those of each set.
func (f *filter) elements(w plan) (all [numSets]map[string]nftables.SetElement) {
	for i := range all {
		all[i] = map[string]nftables.SetElement{}
	}
	for i, places := range map[int]map[place]bool{outsideSet: w.outside, alwaysSet: w.always, refusedSet: w.refused, droppedSet: w.dropped} {
		for p := range places {
			if p.at.Addr().Is6() == f.v6 {
				all[i][string(key(p))] = nftables.SetElement{Key: key(p)}
			}
		}
	}
	for p, ranges := range w.allowed {
		if p.at.Addr().Is6() != f.v6 {
			continue
		}
		all[limitedSet][string(key(p))] = nftables.SetElement{Key: key(p)}
		for _, r := range ranges {
			first := slices.Concat(key(p), r.Addr().AsSlice())
			all[allowedSet][string(first)] = nftables.SetElement{Key: first, KeyEnd: slices.Concat(key(p), last(r).AsSlice())}
		}
	}
	for a := range maps.Keys(w.hairpin) {
		if a.Is6() == f.v6 {
			k := slices.Concat(a.AsSlice(), a.AsSlice())
			all[hairpinSet][string(k)] = nftables.SetElement{Key: k}
		}
	}
	return all
}

// key is a place as the sets have it: each part in words of 32 bits.
func key(p place) []byte {
	port := make([]byte, 4)
	binary.BigEndian.PutUint16(port, p.at.Port())
	return slices.Concat(p.at.Addr().AsSlice(), []byte{byte(protocolNumbers[p.protocol]), 0, 0, 0}, port)
}

// last is a range's last address.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b) // it has an address's length
	return a
}

// word is the n-th register of 32 bits.
func word(n uint32) uint32 { return unix.NFT_REG32_00 + n }

func (f *filter) words() uint32 {
	if f.v6 {
		return 4
	}
	return 1
}

// load puts the packet's source or destination address into registers.
func (f *filter) load(source bool, register uint32) expr.Any {
	offset, size := uint32(16), uint32(4)
	if f.v6 {
		offset, size = 24, 16
	}
	if source {
		offset -= size
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

// front puts where the packet goes into the first registers, as the sets have it.
func (f *filter) front() []expr.Any {
	n := f.words()
	return []expr.Any{
		f.load(false, word(0)),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: word(n)},
		&expr.Payload{DestRegister: word(n + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

func (f *filter) in(i int, not bool) expr.Any {
	return &expr.Lookup{SourceRegister: word(0), SetName: f.sets[i].Name, SetID: setID, Invert: not}
}

// marks drop who may not connect, and mark who is masqueraded.
func (f *filter) marks() (rules [][]expr.Any) {
	mark := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0)},
		&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: 4, Mask: native(^uint32(masqueradeMark)), Xor: native(masqueradeMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0), SourceRegister: true},
	}
	drop := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	rules = append(rules,
		slices.Concat(f.front(), []expr.Any{f.in(limitedSet, false), f.load(true, word(f.words()+2)), f.in(allowedSet, true)}, drop),
		slices.Concat(f.front(), []expr.Any{f.in(droppedSet, false)}, drop),
		slices.Concat(f.front(), []expr.Any{f.in(alwaysSet, false)}, mark))
	if len(f.cluster) == 0 {
		return rules
	}
	outside := []expr.Any{}
	for _, p := range f.cluster {
		size := p.Addr().BitLen() / 8
		mask := make([]byte, size)
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		outside = append(outside, f.load(true, word(0)),
			&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: uint32(size), Mask: mask, Xor: make([]byte, size)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: word(0), Data: p.Addr().AsSlice()})
	}
	return append(rules, slices.Concat(outside, f.front(), []expr.Any{f.in(outsideSet, false)}, mark))
}

// refusals answer clients of Services without endpoints.
func (f *filter) refusals() [][]expr.Any {
	code := uint8(3) // port unreachable: the client's connect fails at once
	if f.v6 {
		code = 4
	}
	return [][]expr.Any{slices.Concat(f.front(), []expr.Any{f.in(refusedSet, false), &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}})}
}

// masquerades are for what is marked, and endpoints that reach themselves.
func (f *filter) masquerades() [][]expr.Any {
	return [][]expr.Any{
		{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: word(0)},
			&expr.Bitwise{SourceRegister: word(0), DestRegister: word(0), Len: 4, Mask: native(masqueradeMark), Xor: native(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: word(0), Data: native(masqueradeMark)},
			&expr.Masq{FullyRandom: true},
		},
		{f.load(true, word(0)), f.load(false, word(f.words())), f.in(hairpinSet, false), &expr.Masq{FullyRandom: true}},
	}
}

// native is a word in this machine's byte order.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
