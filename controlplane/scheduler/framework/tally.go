package framework

import (
	"cmp"
	"crypto/sha256"
	"slices"
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
	size     int // about how much memory the terms take
	dropped  bool
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
	selects digest
}

// maxTallies bounds how many are kept; those asked for least lately go.
const maxTallies = 4096

// maxTallyBytes bounds the terms of all that are kept: 4 kB for each, of which
// a term of a few labels takes a tenth. One alone may have more.
const maxTallyBytes = 4096 * maxTallies

// tallies finds, for a pod, the tallies that count it, by a label all their
// pods have.
type tallies struct {
	byKey    map[tallyKey]*Tally
	byLabel  map[string][]*Tally
	revision uint64
	clock    uint64
	size     int // of the terms of all
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
		h := sha256.New()
		for _, t := range terms {
			h.Write(t.selects[:])
		}
		h.Sum(key.selects[:0])
	}
	t, ok := ts.byKey[key]
	if !ok {
		t = &Tally{key: key, terms: terms, living: living}
		for _, one := range terms {
			t.size += one.size
		}
		if len(ts.byKey) >= maxTallies || ts.size+t.size > maxTallyBytes {
			ts.forget(c)
		}
		ts.size += t.size
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

// forget drops those asked for least lately, until half of what may be kept is left.
func (ts *tallies) forget(c *Cluster) {
	all := make([]*Tally, 0, len(ts.byKey))
	for _, t := range ts.byKey {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Tally) int { return cmp.Compare(a.lastUsed, b.lastUsed) })
	labels := map[string]bool{}
	for _, t := range all {
		if len(ts.byKey) <= maxTallies/2 && ts.size <= maxTallyBytes/2 {
			break
		}
		t.dropped = true
		ts.size -= t.size
		delete(ts.byKey, t.key)
		labels[t.terms[0].bucket()] = true
	}
	for label := range labels {
		if rest := slices.DeleteFunc(ts.byLabel[label], func(t *Tally) bool { return t.dropped }); len(rest) > 0 {
			ts.byLabel[label] = rest
		} else {
			delete(ts.byLabel, label)
		}
	}
	for _, s := range c.shapes { // that are not looked at again may hold what is dropped
		clear(s.tallies.list[:cap(s.tallies.list)])
		s.tallies.revision = 0
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
