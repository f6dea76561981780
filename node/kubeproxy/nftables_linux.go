package kubeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/nft"
)

// kernel is the nftables dataplane: one table per family. The kernel goes through
// all chains and sets of a table, and all elements that lead to chains, when one
// of them changes. So no Service has any of its own: Services are elements of
// maps of plain data, and a change costs the same however many there are.
type kernel struct {
	tables  [2]*family // IPv4, IPv6
	changes *changes
}

// masqueradeMark is the bit that asks for masquerading after routing.
const masqueradeMark = 0x4000

// newNFTables writes into a table of that name. Connections from outside the
// cluster's ranges are masqueraded. Node ports are at the addresses of this node
// in nodePorts; without any, at those that its Node object has.
func newNFTables(table string, cluster []netip.Prefix, nodePorts ...netip.Prefix) (*kernel, error) {
	changes, err := watchChanges()
	if err != nil {
		return nil, err
	}
	k := &kernel{changes: changes}
	for i, nf := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		f := &family{name: table, nf: nf, v6: i == 1, own: changes, metrics: newMetrics(), state: newState()}
		for _, p := range cluster {
			if p.Addr().Is6() == f.v6 {
				f.cluster = append(f.cluster, p)
			}
		}
		for _, p := range nodePorts {
			if p.Addr().Is6() == f.v6 {
				f.nodePortsIn = append(f.nodePortsIn, p)
			}
		}
		f.nodePortsByNode = len(nodePorts) == 0
		k.tables[i] = f
	}
	return k, nil
}

// measure has what is written counted in m.
func (k *kernel) measure(m *metrics) {
	for _, f := range k.tables {
		f.metrics = m
	}
}

func (k *kernel) Close() error {
	for _, f := range k.tables {
		f.disconnect()
	}
	return k.changes.close()
}

// Changed is told when somebody else changes the kernel's rules.
func (k *kernel) Changed() <-chan struct{} { return k.changes.c }

func (k *kernel) Intact() error {
	for _, f := range k.tables {
		if err := f.intact(); err != nil {
			f.disconnect()
			return err
		}
	}
	return nil
}

// buffer is the size of the netlink socket's buffers: a transaction is sent at
// once, and the kernel answers each message of it before the first answer is
// read.
const buffer = 16 << 20

func roomy(c *netlink.Conn) error {
	return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
}

// connect is the family's connection to the kernel. It is kept, since the kernel
// has a socket that closes wait until it has freed what was deleted, for some
// eight milliseconds. After an error it is not: messages may be left in it.
func (f *family) connect() (*nftables.Conn, error) {
	if f.conn != nil {
		return f.conn, nil
	}
	c, err := nft.Open(nftables.AsLasting(), nftables.WithSockOptions(roomy, f.own.ownSocket))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	f.conn = c
	return c, nil
}

// label is the family in metrics.
func (f *family) label() string {
	if f.v6 {
		return string(corev1.IPv6Protocol)
	}
	return string(corev1.IPv4Protocol)
}

// flush sends a transaction. Its error is that of one message: all that follow
// one that fails may fail too.
func flush(c *nftables.Conn) error {
	err := c.Flush()
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

func (f *family) disconnect() {
	if f.conn != nil {
		if err := f.conn.CloseLasting(); err != nil {
			slog.Warn("close a netlink socket", "err", err)
		}
		f.conn = nil
	}
}

// Apply writes the difference between changes and what was applied before.
func (k *kernel) Apply(changes map[cache.ObjectName]Rules, all bool) (refused map[cache.ObjectName]error, err error) {
	refused = map[cache.ObjectName]error{}
	lists := [len(k.tables)][]change{}
	order := []int{0, 1}
	for i, f := range k.tables {
		lists[i] = f.concerned(changes, all)
	}
	// That with most Services last: once its packets find them nothing is left to do, and
	// the next change waits for nothing.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(lists[a]), len(lists[b])) })
	for _, i := range order {
		f, began := k.tables[i], time.Now()
		err := f.apply(lists[i], all, refused)
		f.metrics.observeSync(f.label(), all, began, err)
		if err != nil {
			f.disconnect()
			return refused, err
		}
	}
	return refused, nil
}

// A change is what a Service shall have.
type change struct {
	key cache.ObjectName
	now Rules
}

// concerned are the changes that this family has a part in, in order.
func (f *family) concerned(changes map[cache.ObjectName]Rules, all bool) (list []change) {
	for key, now := range changes {
		if now.of(f.v6) || !all && f.applied[key].of(f.v6) {
			list = append(list, change{key, now})
		}
	}
	slices.SortFunc(list, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
	return list
}

// apply writes as few transactions as it can. Where there are several, fronts
// are first taken away from the Services that shall not have them any more, so
// that it does not matter which transaction gives them to another.
func (f *family) apply(list []change, all bool, refused map[cache.ObjectName]error) error {
	if all {
		return f.rebuild(list, refused)
	}
	var releases []change
	batches := f.batches(list)
	if len(batches) == 1 && f.write(batches[0]) == nil {
		return f.tidy()
	}
	for _, c := range list {
		if now, some := released(f.applied[c.key], c.now); some {
			releases = append(releases, change{c.key, now})
		}
	}
	for _, batch := range slices.Concat(f.batches(releases), batches) {
		if err := f.settle(batch, refused); err != nil {
			return err
		}
	}
	return f.tidy()
}

// settle writes a batch without those of its Services that the kernel refuses,
// which it finds by halves. One that is refused loses the rules it had: they
// may lead where nobody is any more, or hold what another Service shall have.
func (f *family) settle(batch []change, refused map[cache.ObjectName]error) error {
	err := f.write(batch)
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOENT) {
		return err // somebody took the table away
	}
	if n := len(batch) / 2; n > 0 {
		if err := f.settle(batch[:n], refused); err != nil {
			return err
		}
		return f.settle(batch[n:], refused)
	}
	c := batch[0]
	if _, had := f.applied[c.key]; had {
		if err := f.write([]change{{key: c.key}}); err != nil {
			return fmt.Errorf("remove rules of Service %s: %w", c.key, err)
		}
		err = f.write(batch)
	}
	if err != nil {
		refused[c.key] = err
	}
	return nil
}

// released are the rules that a Service has without the fronts that it shall
// not have any more.
func released(was, now Rules) (Rules, bool) {
	r := was
	r.Fronts = maps.Clone(was.Fronts)
	maps.DeleteFunc(r.Fronts, func(front Front, _ Target) bool { _, still := now.Fronts[front]; return !still })
	return r, len(r.Fronts) < len(was.Fronts)
}

// A transaction carries at most so many Services, and about so many bytes,
// which the socket's buffers must hold with the kernel's answers.
const (
	batchServices = 2000
	batchBytes    = 4 << 20
)

// batches cuts a list into transactions.
func (f *family) batches(list []change) (all [][]change) {
	begin, bytes := 0, 0
	for i, c := range list {
		b := size(f.applied[c.key]) + size(c.now)
		if i > begin && (i-begin == batchServices || bytes+b > batchBytes) {
			all, begin, bytes = append(all, list[begin:i]), i, 0
		}
		bytes += b
	}
	if begin < len(list) {
		all = append(all, list[begin:])
	}
	return all
}

// size is about how many bytes rules are in a transaction.
func size(r Rules) int {
	n := 256*len(r.Fronts) + 64*(len(r.Hairpins)+len(r.ClusterIPs))
	for _, p := range r.Pools {
		n += 200 * (len(p.Endpoints) + len(p.Ranges))
	}
	return n
}

// write sends one transaction.
func (f *family) write(batch []change) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	t := f.transaction(c)
	hairpins, clusterIPs, nodeAddresses := counts{}, counts{}, counts{} // what changes
	for _, change := range batch {
		was := f.applied[change.key]
		hairpins.replace(was.Hairpins, change.now.Hairpins)
		clusterIPs.replace(was.ClusterIPs, change.now.ClusterIPs)
		nodeAddresses.replace(was.NodeAddresses, change.now.NodeAddresses)
		t.service(was, change.now)
	}
	t.members(f.hairpin, f.hairpins, hairpins, func(a netip.Addr) []byte { return slices.Concat(a.AsSlice(), a.AsSlice()) })
	t.members(f.clusterSet, f.clusterIPs, clusterIPs, netip.Addr.AsSlice)
	t.members(f.nodeSet, f.nodeAddresses, nodeAddresses, netip.Addr.AsSlice)
	t.newClasses()
	t.flushElements()
	if t.err != nil {
		f.disconnect()
		return t.err
	}
	if err := flush(c); err != nil {
		f.disconnect()
		return fmt.Errorf("write nftables table %s: %w", f.name, err)
	}
	t.commit(batch)
	if !f.filling {
		f.forgetFlows(t.flows)
	}
	return nil
}
