package kubeproxy

import (
	"errors"
	"hash/fnv"
	"net/netip"
	"slices"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// state is what the kernel has.
type state struct {
	applied              map[cache.ObjectName]Rules
	hairpins, clusterIPs counts
	nodeAddresses        counts
	pools                map[string]pool
	ids                  map[uint32]string // whose pool
	// classes are those that have a chain, with the number of elements that lead
	// there. Chains wait for the next Service of their class.
	classes map[class]int
}

func newState() state {
	return state{map[cache.ObjectName]Rules{}, counts{}, counts{}, counts{}, map[string]pool{}, map[uint32]string{}, map[class]int{}}
}

// A pool is the kernel's of a Pool: its endpoints have slots.
type pool struct {
	id       uint32
	affinity int32
	slots    []netip.AddrPort
	ending   []netip.AddrPort
	ranges   []netip.Prefix
}

// counts say how many Services have an address: fronts and pools belong to one
// Service only, but addresses can be of several, the last of which takes them
// away.
type counts map[netip.Addr]int

func (c counts) replace(was, now map[netip.Addr]bool) {
	for a := range was {
		if c[a]--; c[a] == 0 {
			delete(c, a)
		}
	}
	for a := range now {
		c[a]++
	}
}

// A transaction gathers changes of one family. What the kernel has is noted when
// it has taken them.
type transaction struct {
	f     *family
	c     *nftables.Conn
	err   error
	pools map[string]*pool // changed; nil: gone
	ids   map[uint32]string
	uses  map[class]int    // by how much they change
	flows map[Front]Target // UDP fronts, some of whose flows may be stale
	// Elements leave before others come: a front goes from one Service to
	// another within one transaction.
	remove, add []elements
}

type elements struct {
	set  *nftables.Set
	list []nftables.SetElement
}

func (f *family) transaction(c *nftables.Conn) *transaction {
	return &transaction{f: f, c: c, pools: map[string]*pool{}, ids: map[uint32]string{}, uses: map[class]int{}, flows: map[Front]Target{}}
}

// service changes one Service's rules from was to now.
func (t *transaction) service(was, now Rules) {
	for name, p := range now.Pools {
		if p.V6 == t.f.v6 {
			t.pool(name, p)
		}
	}
	for name, p := range was.Pools {
		if _, still := now.Pools[name]; !still && p.V6 == t.f.v6 {
			t.dropPool(name)
		}
	}
	before := func(name string) pool { return t.f.pools[name] }
	for front, target := range was.Fronts {
		if front.Addr.Is6() != t.f.v6 {
			continue
		}
		after := t.f.leads(front, now.Fronts[front], t.now)
		for i, l := range t.f.leads(front, target, before) {
			if l != after[i] {
				t.lead(false, l)
			}
		}
	}
	for front, target := range now.Fronts {
		if front.Addr.Is6() != t.f.v6 {
			continue
		}
		old := t.f.leads(front, was.Fronts[front], before)
		for i, l := range t.f.leads(front, target, t.now) {
			if l != old[i] {
				t.lead(true, l)
			}
		}
	}
	t.staleFlows(was, now)
}

// staleFlows notes the UDP fronts of a Service that have lost endpoints, or have
// some for the first time.
func (t *transaction) staleFlows(was, now Rules) {
	known := map[string]bool{} // many fronts lead to one pool
	lost := func(name string) bool {
		l, ok := known[name]
		if !ok {
			l = t.lost(name)
			known[name] = l
		}
		return l
	}
	for _, fronts := range []map[Front]Target{was.Fronts, now.Fronts} {
		for front := range fronts {
			if front.Protocol != corev1.ProtocolUDP || front.Addr.Is6() != t.f.v6 {
				continue
			}
			old, new := was.Fronts[front], now.Fronts[front]
			if old.Pool == "" && new.Pool != "" || lost(old.Pool) || lost(old.Inside) || old.Pool != new.Pool {
				t.flows[front] = new
			}
		}
	}
}

// lost says whether a pool has fewer endpoints that serve flows than before.
func (t *transaction) lost(name string) bool {
	was, now := t.f.pools[name], t.now(name)
	still := make(map[netip.AddrPort]bool, len(now.slots))
	for _, ep := range slices.Concat(now.slots, now.ending) {
		still[ep] = true
	}
	return slices.ContainsFunc(slices.Concat(was.slots, was.ending), func(ep netip.AddrPort) bool { return !still[ep] })
}

// now is a pool as it is after this transaction.
func (t *transaction) now(name string) pool {
	if p, changed := t.pools[name]; changed {
		if p == nil {
			return pool{}
		}
		return *p
	}
	return t.f.pools[name]
}

// pool writes the slots of a pool that changed.
func (t *transaction) pool(name string, want Pool) {
	was, had := t.f.pools[name]
	now := pool{id: was.id, affinity: want.Affinity, ranges: want.Ranges, ending: want.Ending, slots: place(was.slots, want.Endpoints)}
	if had && was.affinity == now.affinity && slices.Equal(was.slots, now.slots) && slices.Equal(was.ranges, now.ranges) && slices.Equal(was.ending, now.ending) {
		return
	}
	if !had {
		now.id = t.newID(name)
	}
	t.pools[name] = &now
	t.slots(was, now)
	t.ranges(was, now)
	if was.affinity > 0 || now.affinity > 0 {
		t.alive(was, now)
	}
}

func (t *transaction) dropPool(name string) {
	was, had := t.f.pools[name]
	if !had {
		return
	}
	t.pools[name] = nil
	t.slots(was, pool{id: was.id})
	t.ranges(was, pool{id: was.id})
	if was.affinity > 0 {
		t.alive(was, pool{id: was.id})
	}
}

// newID is made of the name, and so the same after a restart: clients are
// remembered by it. Where two names make the same, the second gets the next.
func (t *transaction) newID(name string) uint32 {
	if name == ServiceRanges(t.f.v6) {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	for id := h.Sum32(); ; id++ {
		if id != 0 && t.f.ids[id] == "" && t.ids[id] == "" {
			t.ids[id] = name
			return id
		}
	}
}

func (t *transaction) slots(was, now pool) {
	element := func(i int, p pool) nftables.SetElement {
		return nftables.SetElement{Key: words(p.id, uint32(i)), Val: endpoint(p.slots[i])}
	}
	for i := range max(len(was.slots), len(now.slots)) {
		if i < len(was.slots) && i < len(now.slots) && was.slots[i] == now.slots[i] {
			continue
		}
		if i < len(was.slots) {
			t.element(false, t.f.endpoints, element(i, was))
		}
		if i < len(now.slots) {
			t.element(true, t.f.endpoints, element(i, now))
		}
	}
}

// ranges writes who may connect.
func (t *transaction) ranges(was, now pool) {
	element := func(p pool, r netip.Prefix) nftables.SetElement {
		return nftables.SetElement{Key: slices.Concat(words(p.id), r.Addr().AsSlice()), KeyEnd: slices.Concat(words(p.id), last(r).AsSlice())}
	}
	for _, r := range was.ranges {
		if !slices.Contains(now.ranges, r) {
			t.element(false, t.f.ranges, element(was, r))
		}
	}
	for _, r := range now.ranges {
		if !slices.Contains(was.ranges, r) {
			t.element(true, t.f.ranges, element(now, r))
		}
	}
}

// last is the last address of a range.
func last(r netip.Prefix) netip.Addr {
	b := r.Addr().AsSlice()
	for i := r.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// alive says which endpoints clients may go back to.
func (t *transaction) alive(was, now pool) {
	members := func(p pool) map[netip.AddrPort]bool {
		m := map[netip.AddrPort]bool{}
		if p.affinity > 0 {
			for _, ep := range p.slots {
				m[ep] = true
			}
		}
		return m
	}
	old, new := members(was), members(now)
	for ep := range old {
		if !new[ep] {
			t.element(false, t.f.living, nftables.SetElement{Key: slices.Concat(words(was.id), endpoint(ep))})
		}
	}
	for ep := range new {
		if !old[ep] {
			t.element(true, t.f.living, nftables.SetElement{Key: slices.Concat(words(now.id), endpoint(ep))})
		}
	}
}

func endpoint(ep netip.AddrPort) []byte {
	return slices.Concat(ep.Addr().AsSlice(), port(ep.Port()))
}

// A lead is an element of a map of fronts.
type lead struct {
	via
	front             Front
	pool, count, kind uint32
	class             class // none without endpoints
}

// leads are the elements of a front: for all connections, for those from inside
// when they differ, and for the firewall. No target has none.
func (f *family) leads(front Front, t Target, pools func(string) pool) (l [3]lead) {
	outside, inside := viaAddress, viaInside
	if front.IsNodePort() {
		outside, inside = viaNodePort, viaInsidePort
	}
	to := func(name string, v via, m Masquerade) lead {
		p := pools(name)
		k := kind{via: v, masquerade: m, affinity: p.affinity}
		if p.affinity > 0 {
			k.shard = uint8(p.id % shards)
		}
		return lead{v, front, p.id, uint32(len(p.slots)), k.number(), class{uint32(len(p.slots)), k}}
	}
	switch {
	case t.Pool != "":
		l[0] = to(t.Pool, outside, t.Masquerade)
	case t.Reject:
		l[0] = lead{via: outside, front: front, kind: kindReject}
	case t.Drop:
		l[0] = lead{via: outside, front: front, kind: kindDrop}
	}
	if t.Inside != "" {
		l[1] = to(t.Inside, inside, MasqueradeOutside)
	}
	if t.Firewall != "" {
		l[2] = lead{via: viaFirewall, front: front, pool: pools(t.Firewall).id}
	}
	return l
}

func (t *transaction) lead(add bool, l lead) {
	if l == (lead{}) {
		return
	}
	key := slices.Concat(protocol(l.front.Protocol), port(l.front.Number))
	if !l.via.nodePort() {
		key = slices.Concat(l.front.Addr.AsSlice(), key)
	}
	t.element(add, t.f.fronts(l.via), nftables.SetElement{Key: key, Val: words(l.pool, l.count, l.kind)})
	if l.class.count == 0 {
		return
	}
	if add {
		t.uses[l.class]++
	} else {
		t.uses[l.class]--
	}
}

// newClasses makes the chains of classes that are new.
func (t *transaction) newClasses() {
	for c := range t.uses {
		if _, there := t.f.classes[c]; there {
			continue
		}
		chain := t.c.AddChain(&nftables.Chain{Name: c.chain(t.f.generation), Table: t.f.table})
		for _, r := range t.f.classRules(c) {
			t.c.AddRule(&nftables.Rule{Table: t.f.table, Chain: chain, Exprs: r})
		}
		t.element(true, t.f.classSet, nftables.SetElement{Key: c.key(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain.Name}})
	}
}

// members makes a set hold the addresses that are counted, whose counts before
// are have and change by so many.
func (t *transaction) members(set *nftables.Set, have, change counts, key func(netip.Addr) []byte) {
	for a, d := range change {
		if a.Is6() != t.f.v6 {
			continue
		}
		switch before := have[a]; {
		case before == 0 && d > 0:
			t.element(true, set, nftables.SetElement{Key: key(a)})
		case before > 0 && before+d == 0:
			t.element(false, set, nftables.SetElement{Key: key(a)})
		}
	}
}

func (t *transaction) element(add bool, set *nftables.Set, el nftables.SetElement) {
	to := &t.remove
	if add {
		to = &t.add
	}
	for i := range *to {
		if (*to)[i].set == set {
			(*to)[i].list = append((*to)[i].list, el)
			return
		}
	}
	*to = append(*to, elements{set, []nftables.SetElement{el}})
}

func (t *transaction) flushElements() {
	for _, e := range t.remove {
		for part := range parts(e.list) {
			t.err = errors.Join(t.err, t.c.SetDeleteElements(e.set, part))
		}
	}
	for _, e := range t.add {
		for part := range parts(e.list) {
			t.err = errors.Join(t.err, t.c.SetAddElements(e.set, part))
		}
	}
}

// partBytes bounds one message's list of elements. Its length has 16 bits, and
// what does not fit is cut off without an error.
const partBytes = 32 << 10

// parts cuts a list of elements so that each part fits into a message.
func parts(list []nftables.SetElement) func(yield func([]nftables.SetElement) bool) {
	return func(yield func([]nftables.SetElement) bool) {
		begin, bytes := 0, 0
		for i, e := range list {
			n := 48 + len(e.Key) + len(e.Val)
			if e.VerdictData != nil {
				n += len(e.VerdictData.Chain)
			}
			if bytes+n > partBytes {
				if !yield(list[begin:i]) {
					return
				}
				begin, bytes = i, 0
			}
			bytes += n
		}
		if begin < len(list) {
			yield(list[begin:])
		}
	}
}

// commit notes what the kernel now has.
func (t *transaction) commit(batch []change) {
	f := t.f
	for name, p := range t.pools {
		if p == nil {
			delete(f.ids, f.pools[name].id)
			delete(f.pools, name)
		} else {
			f.pools[name], f.ids[p.id] = *p, name
		}
	}
	for c, d := range t.uses {
		f.classes[c] += d
	}
	for _, c := range batch {
		was := f.applied[c.key]
		f.hairpins.replace(was.Hairpins, c.now.Hairpins)
		f.clusterIPs.replace(was.ClusterIPs, c.now.ClusterIPs)
		f.nodeAddresses.replace(was.NodeAddresses, c.now.NodeAddresses)
		if c.now.empty() {
			delete(f.applied, c.key)
		} else {
			f.applied[c.key] = c.now
		}
	}
}

func protocol(p corev1.Protocol) []byte {
	n := byte(syscall.IPPROTO_TCP)
	switch p {
	case corev1.ProtocolUDP:
		n = syscall.IPPROTO_UDP
	case corev1.ProtocolSCTP:
		n = syscall.IPPROTO_SCTP
	}
	return []byte{n, 0, 0, 0}
}

func port(n uint16) []byte { return append(binaryutil.BigEndian.PutUint16(n), 0, 0) }
