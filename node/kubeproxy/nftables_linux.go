package kubeproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// kernel is the nftables dataplane: one table per family. A connection is
// looked up once, in a map from address, protocol and port to the chain of its
// Service; the chain picks an endpoint by one more map. So cost does not grow
// with the number of Services, and a change writes only what belongs to it.
type kernel struct {
	tables  [2]*family // IPv4, IPv6
	applied map[cache.ObjectName]Rules
	// fronts and chains may belong to one Service only; addresses can be of
	// several, the last of which takes them away.
	hairpins, clusterIPs counts
}

// counts say how many Services have an address.
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

// masqueradeMark is the bit that asks for masquerading after routing.
const masqueradeMark = 0x4000

func newNFTables(table string, cluster []netip.Prefix) (*kernel, error) {
	k := &kernel{applied: map[cache.ObjectName]Rules{}, hairpins: counts{}, clusterIPs: counts{}}
	for i, nf := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		f := &family{name: table, nf: nf, v6: i == 1}
		for _, p := range cluster {
			if p.Addr().Is6() == f.v6 {
				f.cluster = append(f.cluster, p)
			}
		}
		k.tables[i] = f
	}
	return k, nil
}

func (k *kernel) Close() error { return nil }

// buffer is the size of the netlink socket's buffers: the kernel answers each
// message of a transaction before the first answer is read.
const buffer = 16 << 20

func roomy(c *netlink.Conn) error {
	return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
}

// batchServices bounds what one transaction may carry; netlink's socket
// buffers are finite.
const batchServices = 200

// Apply writes the difference between changes and what was applied before.
func (k *kernel) Apply(changes map[cache.ObjectName]Rules, all bool) error {
	if all {
		k.applied = map[cache.ObjectName]Rules{}
		k.hairpins, k.clusterIPs = counts{}, counts{}
	}
	keys := make([]cache.ObjectName, 0, len(changes))
	for key := range changes {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b cache.ObjectName) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
	first := all
	for first || len(keys) > 0 {
		n := min(len(keys), batchServices)
		for _, f := range k.tables {
			if err := k.write(f, keys[:n], changes, first); err != nil {
				return err
			}
		}
		for _, key := range keys[:n] {
			k.commit(key, changes[key])
		}
		keys, first = keys[n:], false
	}
	return nil
}

// commit remembers what the kernel now has.
func (k *kernel) commit(key cache.ObjectName, now Rules) {
	was := k.applied[key]
	k.hairpins.replace(was.Hairpins, now.Hairpins)
	k.clusterIPs.replace(was.ClusterIPs, now.ClusterIPs)
	if len(now.Addresses) == 0 && len(now.NodePorts) == 0 {
		delete(k.applied, key)
		return
	}
	k.applied[key] = now
}

// write sends one transaction for one family.
func (k *kernel) write(f *family, keys []cache.ObjectName, changes map[cache.ObjectName]Rules, fresh bool) error {
	c, err := nftables.New(nftables.WithSockOptions(roomy))
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	if fresh {
		if err := f.base(c); err != nil {
			return err
		}
	}
	t := &transaction{f: f, c: c, gone: map[string]Chain{}}
	hairpins, clusterIPs := counts{}, counts{} // what changes
	for _, key := range keys {
		was, now := k.applied[key], changes[key]
		hairpins.replace(was.Hairpins, now.Hairpins)
		clusterIPs.replace(was.ClusterIPs, now.ClusterIPs)
		if err := t.service(was, now); err != nil {
			return err
		}
	}
	t.members(f.hairpin, k.hairpins, hairpins, func(a netip.Addr) []byte { return slices.Concat(a.AsSlice(), a.AsSlice()) })
	t.members(f.clusterIPs, k.clusterIPs, clusterIPs, netip.Addr.AsSlice)
	if t.err != nil {
		return t.err
	}
	t.drop()
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", f.name, err)
	}
	t.forgetConnections()
	return nil
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

// A transaction gathers changes of one family.
type transaction struct {
	f     *family
	c     *nftables.Conn
	err   error
	gone  map[string]Chain // to delete once nothing leads to them
	stale []netip.AddrPort // UDP endpoints that are no more
	fresh []netip.AddrPort // UDP fronts that have endpoints now
}

// service changes one Service's rules from was to now.
func (t *transaction) service(was, now Rules) error {
	// Chains first: elements may only lead to what is there.
	for name, ch := range now.Chains {
		if ch.V6 != t.f.v6 {
			continue
		}
		old, had := was.Chains[name]
		if had && sameChain(old, ch) {
			continue
		}
		t.chain(name, ch, had, old)
	}
	for front, target := range was.Addresses {
		if front.Addr.Is6() == t.f.v6 && now.Addresses[front] != target {
			t.lead(false, front, target)
		}
	}
	for port, target := range was.NodePorts {
		if now.NodePorts[port] != target && t.mine(target, was) {
			t.leadPort(false, port, target)
		}
	}
	for front, target := range now.Addresses {
		if front.Addr.Is6() == t.f.v6 && was.Addresses[front] != target {
			t.lead(true, front, target)
			if front.Protocol == corev1.ProtocolUDP && was.Addresses[front].Chain == "" {
				t.fresh = append(t.fresh, netip.AddrPortFrom(front.Addr, front.Number))
			}
		}
	}
	for port, target := range now.NodePorts {
		if was.NodePorts[port] != target && t.mine(target, now) {
			t.leadPort(true, port, target)
		}
	}
	for name, ch := range was.Chains {
		if _, still := now.Chains[name]; !still && ch.V6 == t.f.v6 {
			t.gone[name] = ch
			if ch.UDP {
				t.removed(ch.Endpoints, nil)
			}
		}
	}
	return t.err
}

// mine says that a node port's target belongs into this family's table: a
// chain into its own, the lack of one into IPv4's.
func (t *transaction) mine(target Target, r Rules) bool {
	if target.Chain == "" {
		return !t.f.v6
	}
	return r.Chains[target.Chain].V6 == t.f.v6
}

func sameChain(a, b Chain) bool {
	return a.Masquerade == b.Masquerade && a.Affinity == b.Affinity && slices.Equal(a.Endpoints, b.Endpoints)
}

func (t *transaction) element(add bool, set *nftables.Set, el nftables.SetElement) {
	var err error
	if add {
		err = t.c.SetAddElements(set, []nftables.SetElement{el})
	} else {
		err = t.c.SetDeleteElements(set, []nftables.SetElement{el})
	}
	t.err = errors.Join(t.err, err)
}

func (t *transaction) lead(add bool, front Front, target Target) {
	key := slices.Concat(front.Addr.AsSlice(), protocol(front.Protocol), port(front.Number))
	set := t.f.services
	if target.Chain == "" {
		set = t.f.refused
	}
	t.element(add, set, nftables.SetElement{Key: key, VerdictData: verdict(target)})
}

func (t *transaction) leadPort(add bool, p Port, target Target) {
	key := slices.Concat(protocol(p.Protocol), port(p.Number))
	set := t.f.nodePorts
	if target.Chain == "" {
		set = t.f.refusedPorts
	}
	t.element(add, set, nftables.SetElement{Key: key, VerdictData: verdict(target)})
}

func verdict(t Target) *expr.Verdict {
	switch {
	case t.Chain != "":
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: t.Chain}
	case t.Reject:
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: rejectChain}
	}
	return &expr.Verdict{Kind: expr.VerdictDrop}
}

// removed remembers endpoints that were there and are no more.
func (t *transaction) removed(was, now []netip.AddrPort) {
	for _, ep := range was {
		if !slices.Contains(now, ep) {
			t.stale = append(t.stale, ep)
		}
	}
}

// drop deletes the chains that are no longer led to.
func (t *transaction) drop() {
	for name, was := range t.gone {
		ch := &nftables.Chain{Name: name, Table: t.f.table}
		t.c.FlushChain(ch)
		t.c.DelChain(ch)
		if was.Affinity > 0 {
			t.c.DelSet(&nftables.Set{Table: t.f.table, Name: affinityName(name)})
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
