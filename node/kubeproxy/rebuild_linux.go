package kubeproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"k8s.io/client-go/tools/cache"
)

// rebuild writes all rules beside those that packets use, in as many
// transactions as it takes, then has packets use the new ones in a single one.
// So connections find either all of the old rules or all of the new, and those
// of a process before this one work until then. Clients that are kept at their
// endpoints stay there.
func (f *family) rebuild(list []change, refused map[cache.ObjectName]error) error {
	err := f.generate(list, refused)
	if err != nil {
		f.disconnect()
	}
	// What is there is not as this version makes it.
	if errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EBUSY) {
		slog.Warn("kube-proxy makes its table anew, which is there in another form", "table", f.name, "err", err)
		c, cerr := f.connect()
		if cerr != nil {
			return cerr
		}
		c.DelTable(f.table)
		if err := flush(c); err != nil {
			return fmt.Errorf("delete nftables table %s: %w", f.name, err)
		}
		err = f.generate(list, refused)
	}
	return err
}

func (f *family) generate(list []change, refused map[cache.ObjectName]error) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	old, err := f.listing(c)
	if err != nil {
		return err
	}
	f.state, f.generation = newState(), old.next()
	f.table = c.AddTable(&nftables.Table{Name: f.name, Family: f.nf})
	if err := f.addSets(c); err != nil {
		return err
	}
	if err := flush(c); err != nil {
		return fmt.Errorf("make nftables table %s: %w", f.name, err)
	}
	f.filling = true
	defer func() { f.filling = false }()
	for _, batch := range f.batches(list) {
		if err := f.settle(batch, refused); err != nil {
			return err
		}
	}
	flows := f.udpFronts() // before, so that nothing but their flows is left afterwards
	f.enter(c)
	for _, chain := range old.chains {
		if chain.Hooknum != nil && !f.mine(chain.Name) {
			c.FlushChain(chain)
		}
	}
	if err := flush(c); err != nil {
		return fmt.Errorf("use the new rules of nftables table %s: %w", f.name, err)
	}
	f.forgetFlows(flows) // endpoints may have gone since the process before this one
	if err := f.sweep(c, old); err != nil {
		f.disconnect()
		f.metrics.cleanups.WithLabelValues(f.label()).Inc()
		slog.Warn("kube-proxy leaves rules that nothing leads to", "table", f.name, "err", err)
	}
	return nil
}

// A listing is the names of what a table has.
type listing struct {
	chains []*nftables.Chain
	sets   []*nftables.Set
}

func (f *family) listing(c *nftables.Conn) (l listing, err error) {
	tables, err := c.ListTablesOfFamily(f.nf)
	if err != nil {
		return l, fmt.Errorf("list nftables tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == f.name }) {
		return l, nil
	}
	table := &nftables.Table{Name: f.name, Family: f.nf}
	all, err := c.ListChainsOfTableFamily(f.nf)
	if err != nil {
		return l, fmt.Errorf("list the chains of nftables table %s: %w", f.name, err)
	}
	for _, ch := range all {
		if ch.Table.Name == f.name {
			l.chains = append(l.chains, ch)
		}
	}
	if l.sets, err = c.GetSets(table); err != nil {
		return l, fmt.Errorf("list the sets of nftables table %s: %w", f.name, err)
	}
	return l, nil
}

// next is a generation that no set or chain is of.
func (l listing) next() string {
	last := 0
	note := func(name string) {
		if i := strings.LastIndexByte(name, '.'); i >= 0 {
			if n, err := strconv.Atoi(name[i+1:]); err == nil {
				last = max(last, n)
			}
		}
	}
	for _, s := range l.sets {
		note(s.Name)
	}
	for _, ch := range l.chains {
		note(ch.Name)
	}
	return "." + strconv.Itoa(last+1)
}

// mine says whether a chain or set is of this generation, or of all.
func (f *family) mine(name string) bool {
	return strings.HasSuffix(name, f.generation) || strings.HasPrefix(name, clientsName) ||
		slices.ContainsFunc(f.hooks(), func(h hook) bool { return h.name == name })
}

// sweepAtOnce bounds a transaction that deletes, as the kernel answers each of
// its messages.
const sweepAtOnce = 1000

// sweep deletes what is of another generation. A chain goes in a transaction
// after that which unlinks it: kernels before 6.2 answer EBUSY otherwise.
func (f *family) sweep(c *nftables.Conn, old listing) error {
	old.chains = slices.DeleteFunc(old.chains, func(ch *nftables.Chain) bool { return f.mine(ch.Name) })
	old.sets = slices.DeleteFunc(old.sets, func(s *nftables.Set) bool { return s.Anonymous || f.mine(s.Name) })
	for part := range slices.Chunk(old.chains, sweepAtOnce) {
		for _, ch := range part {
			c.FlushChain(ch)
		}
		if err := flush(c); err != nil {
			return fmt.Errorf("empty old chains: %w", err)
		}
	}
	for part := range slices.Chunk(old.sets, sweepAtOnce) {
		for _, s := range part {
			s.Table = f.table
			c.DelSet(s)
		}
		if err := flush(c); err != nil {
			return fmt.Errorf("delete old sets: %w", err)
		}
	}
	for part := range slices.Chunk(old.chains, sweepAtOnce) {
		for _, ch := range part {
			c.DelChain(ch)
		}
		if err := flush(c); err != nil {
			return fmt.Errorf("delete old chains: %w", err)
		}
	}
	return nil
}

// idleClasses is how many chains wait for a Service of their class.
const idleClasses = 64

// tidy deletes the chains that wait, when there are many.
func (f *family) tidy() error {
	var idle []class
	for c, uses := range f.classes {
		if uses == 0 {
			idle = append(idle, c)
		}
	}
	if len(idle) <= idleClasses {
		return nil
	}
	c, err := f.connect()
	if err != nil {
		return err
	}
	var list []nftables.SetElement
	for _, class := range idle {
		list = append(list, nftables.SetElement{Key: class.key()})
		c.FlushChain(&nftables.Chain{Name: class.chain(f.generation), Table: f.table})
	}
	for part := range parts(list) {
		if err := c.SetDeleteElements(f.classSet, part); err != nil {
			return fmt.Errorf("unlink idle chains: %w", err)
		}
	}
	if err := flush(c); err != nil {
		return fmt.Errorf("unlink idle chains: %w", err)
	}
	for _, class := range idle { // unlinked by now
		delete(f.classes, class)
		c.DelChain(&nftables.Chain{Name: class.chain(f.generation), Table: f.table})
	}
	if err := flush(c); err != nil {
		return fmt.Errorf("delete idle chains: %w", err)
	}
	return nil
}

// intact says whether packets still enter these rules.
func (f *family) intact() error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	if f.table == nil {
		return nil // not yet written
	}
	for _, h := range f.hooks() {
		rules, err := c.GetRules(f.table, &nftables.Chain{Name: h.name, Table: f.table})
		if err != nil {
			return fmt.Errorf("find chain %s of nftables table %s: %w", h.name, f.name, err)
		}
		if len(rules) != len(h.rules) {
			return fmt.Errorf("chain %s of nftables table %s has %d rules, not %d", h.name, f.name, len(rules), len(h.rules))
		}
	}
	return nil
}
