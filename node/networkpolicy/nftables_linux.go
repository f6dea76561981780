package networkpolicy

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/nft"
)

// kernel is the nftables dataplane: one table for both families. A connection is
// looked up by the pod's address, once for each direction, however many pods and
// policies there are; a pod that changes is a few elements of sets.
type kernel struct {
	table      *nftables.Table
	generation string // what its names begin with
	conn       *nftables.Conn
	notices    *netlink.Conn
	bytes      int // of the transaction that is being put together
	messages   int
	err        error

	missing map[string]error // sets that the kernel has refused, by id
	without map[string]bool  // sets of blocks that have none of a family
	garbage garbage

	mu   sync.Mutex
	mine []uint32 // the netlink ports that changes of this process come from
}

// garbage is what the kernel still has and nothing leads to.
type garbage struct{ sets, chains map[string]bool }

func newGarbage() garbage { return garbage{map[string]bool{}, map[string]bool{}} }

func newNFTables(table string) (*kernel, error) {
	k := &kernel{table: &nftables.Table{Name: table, Family: nftables.TableFamilyINet}, garbage: newGarbage()}
	if err := k.dial(); err != nil {
		return nil, err
	}
	var err error
	if k.notices, err = dialNotices(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// dial opens the socket of transactions, which is kept: by its port the kernel's
// notices tell this process's changes from others'.
func (k *kernel) dial() (err error) {
	if k.conn != nil {
		_ = k.conn.CloseLasting() // what was in it is lost anyway
	}
	k.bytes, k.messages, k.err = 0, 0, nil
	k.conn, err = nft.Open(nftables.AsLasting(), nftables.WithSockOptions(roomy, k.noteMine))
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// buffer is the size of the socket's buffers: a transaction is sent at once, and
// the kernel answers each message of it before the first answer is read.
const buffer = 16 << 20

func roomy(c *netlink.Conn) error {
	return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
}

// maxMine is how many sockets are remembered, of which one is open.
const maxMine = 16

func (k *kernel) noteMine(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var name unix.Sockaddr
	cerr := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) })
	if err = errors.Join(cerr, err); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if nl, ok := name.(*unix.SockaddrNetlink); ok {
		k.mine = append(k.mine, nl.Pid)
		k.mine = k.mine[max(0, len(k.mine)-maxMine):]
	}
	return nil
}

func (k *kernel) isMine(port uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.mine, port)
}

func (k *kernel) Close() error {
	var errs []error
	if k.conn != nil {
		errs = append(errs, k.conn.CloseLasting())
	}
	if k.notices != nil {
		errs = append(errs, k.notices.Close())
	}
	return errors.Join(errs...)
}

// What one transaction carries at most.
const (
	maxBytes    = 2 << 20
	maxMessages = 4000
)

// room makes place for a message of about so many bytes: what is full is sent.
func (k *kernel) room(bytes int) {
	if k.bytes+bytes > maxBytes || k.messages == maxMessages {
		k.err = errors.Join(k.err, k.flush())
	}
	k.bytes += bytes
	k.messages++
}

func (k *kernel) flush() error {
	k.bytes, k.messages = 0, 0
	if err := k.conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

// commit sends what is left. After an error the socket is another: the old one
// may hold answers that nobody has read.
func (k *kernel) commit() error {
	err := k.err
	if err == nil {
		err = k.flush()
	}
	if err != nil {
		return errors.Join(err, k.dial())
	}
	return nil
}

// Apply writes changes. Those of everything make a new generation.
func (k *kernel) Apply(c *Changes, all bool) (map[cache.ObjectName]error, error) {
	if all {
		return k.replace(c)
	}
	refused := map[cache.ObjectName]error{}
	for _, id := range sortedKeys(c.Sets) {
		k.writeSet(id, c.Sets[id])
	}
	policies, pods := chainNames(c)
	for _, name := range policies {
		k.writePolicy(name, c.Chains[name], refused)
	}
	for _, name := range pods {
		k.writeChain(name, c.Chains[name])
	}
	k.writeVerdicts(c)
	for name, ch := range c.Chains {
		if ch.Now == nil {
			k.room(100)
			k.conn.FlushChain(k.chain(name))
			k.garbage.chains[k.generation+name] = true
		}
	}
	if err := k.commit(); err != nil {
		return nil, err
	}
	for id, s := range c.Sets {
		if !s.Exists {
			k.discard(id, s.Kind)
		}
	}
	return refused, k.sweep()
}

// replace fills a new generation beside the one in force, and puts it in its
// place in one step.
func (k *kernel) replace(c *Changes) (map[cache.ObjectName]error, error) {
	if err := k.begin(); err != nil {
		return nil, err
	}
	refused := map[cache.ObjectName]error{}
	err := k.settle(sortedKeys(c.Sets), func(id string) { k.writeSet(id, c.Sets[id]) }, func(id string, err error) { k.missing[id] = err })
	if err != nil {
		return nil, err
	}
	policies, pods := chainNames(c)
	err = k.settle(policies, func(name string) { k.writePolicy(name, c.Chains[name], refused) }, func(name string, err error) {
		refused[c.Chains[name].Now.Policy] = err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range policies { // also of those that were refused, so that pods' chains lead somewhere
		k.room(100)
		k.conn.AddChain(k.chain(name))
	}
	for _, name := range pods {
		k.writeChain(name, c.Chains[name])
	}
	k.writeVerdicts(c)
	if err := k.commit(); err != nil {
		return nil, err
	}
	if err := k.swap(); err != nil {
		return nil, err
	}
	return refused, k.clean()
}

// generations tell the names of this process's generations apart.
var generations atomic.Uint32

// begin makes what a generation begins with, and the table if there is none.
func (k *kernel) begin() error {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	k.generation = fmt.Sprintf("%s%d-", hex.EncodeToString(random[:]), generations.Add(1))
	k.missing, k.without, k.garbage = map[string]error{}, map[string]bool{}, newGarbage()
	skeleton := func() error {
		k.conn.AddTable(k.table)
		for _, v6 := range families {
			k.addSet(newPods(k.table, v6))
			for _, d := range directions {
				k.addSet(k.verdictMap(d, v6))
			}
		}
		return k.commit()
	}
	if err := skeleton(); err == nil {
		return nil
	}
	// One of another version, which has other sets.
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	return skeleton()
}

// settle writes a list without those of it that the kernel refuses, which it
// finds by halves.
func (k *kernel) settle(list []string, write func(string), refuse func(string, error)) error {
	for _, name := range list {
		write(name)
	}
	err := k.commit()
	switch n := len(list) / 2; {
	case err == nil:
		return nil
	case n > 0:
		if err := k.settle(list[:n], write, refuse); err != nil {
			return err
		}
		return k.settle(list[n:], write, refuse)
	}
	if _, gone := k.conn.ListTableOfFamily(k.table.Name, k.table.Family); gone != nil {
		return errors.Join(err, gone, k.dial())
	}
	refuse(list[0], err)
	return nil
}

// swap hooks this generation in and the others out.
func (k *kernel) swap() error {
	chains, _, err := k.others()
	if err != nil {
		return err
	}
	k.baseChains()
	for _, ch := range chains {
		if ch.Hooknum != nil {
			k.conn.FlushChain(ch)
			k.conn.DelChain(ch)
		}
	}
	return k.commit()
}

// others are the chains and sets of other generations.
func (k *kernel) others() (chains []*nftables.Chain, sets []*nftables.Set, err error) {
	all, err := k.conn.ListChainsOfTableFamily(k.table.Family)
	if err == nil {
		sets, err = k.conn.GetSets(k.table)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("list nftables table %s: %w", k.table.Name, err), k.dial())
	}
	for _, ch := range all {
		if ch.Table.Name == k.table.Name && !strings.HasPrefix(ch.Name, k.generation) {
			chains = append(chains, ch)
		}
	}
	sets = slices.DeleteFunc(sets, func(s *nftables.Set) bool {
		s.Table = k.table
		return s.Name == NewPods4 || s.Name == NewPods6 || strings.HasPrefix(s.Name, k.generation)
	})
	return chains, sets, nil
}

// clean deletes other generations. Kernels before 6.2 do not delete a chain in the
// transaction that takes away what leads to it.
func (k *kernel) clean() error {
	chains, sets, err := k.others()
	if err != nil {
		return err
	}
	for _, ch := range chains {
		k.room(100)
		k.conn.FlushChain(ch)
	}
	err = k.commit()
	for _, s := range sets {
		k.room(100)
		k.conn.DelSet(s)
	}
	err = errors.Join(err, k.commit())
	for _, ch := range chains {
		k.room(100)
		k.conn.DelChain(ch)
	}
	return errors.Join(err, k.commit())
}

// addSet adds a set. The library's own counter of ids is not for several
// goroutines, and names are enough.
func (k *kernel) addSet(s *nftables.Set) {
	k.room(300)
	s.ID = 1 << 30
	k.err = errors.Join(k.err, k.conn.AddSet(s, nil))
	s.ID = 0
}

func (k *kernel) writeSet(id string, c *SetChange) {
	if !c.Exists || k.missing[id] != nil {
		return
	}
	if c.Kind == Ports {
		k.writeElements(k.set(id, c.Kind, false), c, portElements(c.Ports), nil)
		return
	}
	for _, v6 := range families {
		come, gone := elements(c.Kind, c.Elements, v6, true), elements(c.Kind, c.Elements, v6, false)
		if c.Kind == Blocks {
			come = blockElements(c.Blocks, v6)
			if k.without[id+suffix(v6)] = len(come) == 0; len(come) == 0 {
				continue
			}
		}
		k.writeElements(k.set(id, c.Kind, v6), c, come, gone)
	}
}

func (k *kernel) writeElements(s *nftables.Set, c *SetChange, come, gone []nftables.SetElement) {
	if !c.Existed || c.Refill {
		k.addSet(s)
		if c.Refill || k.garbage.sets[s.Name] {
			k.room(100)
			k.conn.FlushSet(s)
			delete(k.garbage.sets, s.Name)
		}
	}
	k.change(s, gone, (*nftables.Conn).SetDeleteElements)
	k.change(s, come, (*nftables.Conn).SetAddElements)
}

// partBytes bounds one message's list of elements. Its length has 16 bits, and
// what does not fit is cut off without an error.
const partBytes = 32 << 10

// change adds elements to a set or takes them out, in as many messages as needed.
func (k *kernel) change(s *nftables.Set, list []nftables.SetElement, do func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) {
	for len(list) > 0 {
		n, bytes := 0, 0
		for n < len(list) && bytes < partBytes {
			e := list[n]
			if bytes += 48 + len(e.Key) + len(e.KeyEnd); e.VerdictData != nil {
				bytes += 32 + len(e.VerdictData.Chain)
			}
			n++
		}
		k.room(bytes + 200)
		k.err = errors.Join(k.err, do(k.conn, s, list[:n]))
		list = list[n:]
	}
}

// writePolicy writes a policy's chain, empty if one of its sets is not there.
func (k *kernel) writePolicy(name string, c *ChainChange, refused map[cache.ObjectName]error) {
	ch := *c.Now
	for _, m := range ch.Rules {
		for _, id := range []string{m.Peers, m.Ports, m.Named} {
			if err := k.missing[id]; err != nil {
				refused[ch.Policy], ch.Rules = err, nil
			}
		}
	}
	k.writeChain(name, &ChainChange{Existed: c.Existed, Now: &ch})
}

// writeChain writes a chain. What of a large one is in a later transaction is
// allowed later.
func (k *kernel) writeChain(name string, c *ChainChange) {
	ch := k.chain(name)
	k.room(200)
	k.conn.AddChain(ch)
	if c.Existed || k.garbage.chains[ch.Name] {
		k.room(100)
		k.conn.FlushChain(ch)
		delete(k.garbage.chains, ch.Name)
	}
	var text []byte
	if c.Now.Jumps == nil {
		text = comment(c.Now)
	}
	for _, exprs := range k.rules(c.Now) {
		k.room(150 + 60*len(exprs))
		k.conn.AddRule(&nftables.Rule{Table: k.table, Chain: ch, Exprs: exprs, UserData: text})
	}
}

func (k *kernel) writeVerdicts(c *Changes) {
	for _, d := range directions {
		for _, v6 := range families {
			gone, come := verdictElements(k, c.Verdicts[d], v6)
			s := k.verdictMap(d, v6)
			k.change(s, gone, (*nftables.Conn).SetDeleteElements)
			k.change(s, come, (*nftables.Conn).SetAddElements)
		}
	}
}

// discard notes that a set is no longer looked up.
func (k *kernel) discard(id string, kind Kind) {
	if k.missing[id] != nil {
		delete(k.missing, id)
		return
	}
	if kind == Ports {
		k.garbage.sets[k.set(id, kind, false).Name] = true
		return
	}
	for _, v6 := range families {
		if !k.without[id+suffix(v6)] {
			k.garbage.sets[k.set(id, kind, v6).Name] = true
		}
		delete(k.without, id+suffix(v6))
	}
}

// sweep deletes garbage. What the kernel will not delete yet is left for the
// next time.
func (k *kernel) sweep() error {
	if len(k.garbage.sets)+len(k.garbage.chains) == 0 {
		return nil
	}
	for name := range k.garbage.sets {
		k.room(100)
		k.conn.DelSet(&nftables.Set{Table: k.table, Name: name})
	}
	for name := range k.garbage.chains {
		k.room(100)
		k.conn.DelChain(&nftables.Chain{Table: k.table, Name: name})
	}
	switch err := k.commit(); {
	case err == nil:
		k.garbage = newGarbage()
	case !errors.Is(err, syscall.EBUSY):
		return err
	}
	return nil
}

// Open takes addresses out of the sets of new pods. One that the kernel has taken
// out already is no error.
func (k *kernel) Open(addrs []netip.Addr) error {
	for _, a := range addrs {
		err := k.conn.SetDeleteElements(newPods(k.table, a.Is6()), []nftables.SetElement{{Key: a.AsSlice()}})
		if err == nil {
			err = k.conn.Flush()
		}
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return errors.Join(fmt.Errorf("open new pods in nftables table %s: %w", k.table.Name, err), k.dial())
		}
	}
	return nil
}

// chainNames are the chains of policies and of pods that shall be there.
func chainNames(c *Changes) (policies, pods []string) {
	for _, name := range sortedKeys(c.Chains) {
		switch now := c.Chains[name].Now; {
		case now == nil:
		case now.Jumps == nil:
			policies = append(policies, name)
		default:
			pods = append(pods, name)
		}
	}
	return policies, pods
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
