package framework

import (
	"slices"
	"strings"
)

// A Tally counts, per node, the placed pods that all of some terms select.
type Tally struct {
	// Nodes are the slots with pods, Counts how many each has.
	Nodes  []int32
	Counts []int32

	at       map[int32]int32
	terms    []*Term
	living   bool // pods being deleted do not count
	key      tallyKey
	lastUsed uint64
}

func (t *Tally) add(slot, delta int32) {
	i, ok := t.at[slot]
	if !ok {
		i = int32(len(t.Nodes))
		t.at[slot] = i
		t.Nodes = append(t.Nodes, slot)
		t.Counts = append(t.Counts, 0)
	}
	if t.Counts[i] += delta; t.Counts[i] != 0 {
		return
	}
	last := int32(len(t.Nodes) - 1)
	t.Nodes[i], t.Counts[i] = t.Nodes[last], t.Counts[last]
	t.at[t.Nodes[i]] = i
	delete(t.at, slot)
	t.Nodes, t.Counts = t.Nodes[:last], t.Counts[:last]
}

// Of is the count on a slot.
func (t *Tally) Of(slot int) int32 {
	if i, ok := t.at[int32(slot)]; ok {
		return t.Counts[i]
	}
	return 0
}

// Matches reports whether the tally would count pods of that shape.
func (t *Tally) Matches(s *Shape, c *Cluster) bool {
	for _, term := range t.terms {
		if !term.Matches(s, c) {
			return false
		}
	}
	return true
}

// Counts reports whether the pod counts, supposing its shape does.
func (t *Tally) counts(p *Pod) bool { return !t.living || !p.Terminating() }

type tallyKey struct {
	living  bool
	selects string
}

// maxTallies bounds how many are kept; those asked for least lately go.
const maxTallies = 4096

// tallies finds, for a pod, the tallies that count it, by a label all their
// pods have.
type tallies struct {
	byKey    map[tallyKey]*Tally
	byLabel  map[string][]*Tally
	revision uint64
	clock    uint64
}

func newTallies() tallies {
	return tallies{byKey: map[tallyKey]*Tally{}, byLabel: map[string][]*Tally{}, revision: 1}
}

// Tally counts the pods that all terms select, from now on. With living, pods
// being deleted do not count.
func (c *Cluster) Tally(living bool, terms ...*Term) *Tally {
	ts := &c.tallies
	ts.clock++
	key := tallyKey{living, terms[0].selects}
	if len(terms) > 1 {
		var b strings.Builder
		for _, t := range terms {
			b.WriteString(t.selects)
			b.WriteByte('&')
		}
		key.selects = b.String()
	}
	t, ok := ts.byKey[key]
	if !ok {
		if len(ts.byKey) >= maxTallies {
			ts.forget()
		}
		t = &Tally{key: key, terms: terms, living: living}
		ts.byKey[key] = t
		label := terms[0].bucket()
		ts.byLabel[label] = append(ts.byLabel[label], t)
		ts.revision++
		c.recount(t)
	}
	t.lastUsed = ts.clock
	return t
}

func (c *Cluster) recount(t *Tally) {
	t.Nodes, t.Counts, t.at = nil, nil, map[int32]int32{}
	for s := range c.placed[t.terms[0].bucket()] {
		if !t.Matches(s, c) {
			continue
		}
		for _, p := range s.placed {
			if t.counts(p) {
				t.add(int32(p.Node.Slot), 1)
			}
		}
	}
}

// forget drops the half of the tallies that was asked for least lately.
func (ts *tallies) forget() {
	all := make([]*Tally, 0, len(ts.byKey))
	for _, t := range ts.byKey {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Tally) int {
		if a.lastUsed < b.lastUsed {
			return -1
		}
		return 1
	})
	for _, t := range all[:len(all)/2] {
		delete(ts.byKey, t.key)
		label := t.terms[0].bucket()
		if rest := slices.DeleteFunc(ts.byLabel[label], func(o *Tally) bool { return o == t }); len(rest) > 0 {
			ts.byLabel[label] = rest
		} else {
			delete(ts.byLabel, label)
		}
	}
	ts.revision++
}

// recount counts anew those that depend on labels of namespaces.
func (ts *tallies) recount(c *Cluster) {
	for _, t := range ts.byKey {
		if slices.ContainsFunc(t.terms, func(t *Term) bool { return t.spaces != nil }) {
			c.recount(t)
		}
	}
	ts.revision++
}

func (ts *tallies) count(c *Cluster, p *Pod, delta int32) {
	for _, t := range ts.of(c, p.Shape) {
		if t.counts(p) {
			t.add(int32(p.Node.Slot), delta)
		}
	}
}

func (ts *tallies) of(c *Cluster, s *Shape) []*Tally {
	if s.tallies.revision == ts.revision {
		return s.tallies.list
	}
	list := s.tallies.list[:0]
	s.eachLabel(func(label string) {
		for _, t := range ts.byLabel[label] {
			if t.Matches(s, c) {
				list = append(list, t)
			}
		}
	})
	s.tallies = cached[*Tally]{ts.revision, list}
	return list
}
