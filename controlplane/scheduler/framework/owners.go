package framework

// A TermKind is what a pod's term says of the pods it selects.
type TermKind uint8

// The stances of placed pods that matter to others.
const (
	RequiredAntiAffinity TermKind = iota // required anti-affinity
	RequiredAffinity                     // required affinity
	PreferredAffinity                    // preferred, with a weight that may be negative
)

// Owners counts, per node, the placed pods that have a term.
type Owners struct {
	Tally
	Term     *Term
	TermKind TermKind
	Weight   int64

	total int
	label string
	in    int // index in its bucket
}

type ownerKey struct {
	topology string
	selects  digest
	kind     TermKind
	weight   int64
}

type owners struct {
	byKey    map[ownerKey]*Owners
	byLabel  map[string][]*Owners
	revision uint64
	// long is what OwnersMatching found last that was too long to keep.
	long         []*Owners
	longOf       *Shape
	longRevision uint64
}

// maxMatching is how many owners a shape remembers that its pods are matched by.
const maxMatching = 256

func newOwners() owners {
	return owners{byKey: map[ownerKey]*Owners{}, byLabel: map[string][]*Owners{}, revision: 1}
}

// count adds the pod to the owners of each of its terms, or takes it away.
func (os *owners) count(p *Pod, delta int32) {
	s := p.Shape
	if len(s.AntiAffinity)+len(s.Affinity)+len(s.Preferred) == 0 {
		return
	}
	one := func(t *Term, kind TermKind, weight int64) {
		k := ownerKey{t.TopologyKey, t.selects, kind, weight}
		o := os.byKey[k]
		if o == nil {
			o = &Owners{Term: t, TermKind: kind, Weight: weight, label: t.bucket()}
			o.at = map[int32]int32{}
			os.byKey[k] = o
			o.in = len(os.byLabel[o.label])
			os.byLabel[o.label] = append(os.byLabel[o.label], o)
			os.revision++
		}
		o.add(int32(p.Node.Slot), delta)
		if o.total += int(delta); o.total == 0 {
			delete(os.byKey, k)
			os.remove(o)
		}
	}
	for _, t := range s.AntiAffinity {
		one(t, RequiredAntiAffinity, 0)
	}
	for _, t := range s.Affinity {
		one(t, RequiredAffinity, 0)
	}
	for _, t := range s.Preferred {
		one(t.Term, PreferredAffinity, t.Weight)
	}
}

// remove takes owners that nobody is left of out of their bucket. Shapes may remember
// them until they are looked at again, so that they let go of what they have.
func (os *owners) remove(o *Owners) {
	list := os.byLabel[o.label]
	last := len(list) - 1
	list[o.in] = list[last]
	list[o.in].in = o.in
	list[last] = nil
	if os.byLabel[o.label] = list[:last]; last == 0 {
		delete(os.byLabel, o.label)
	}
	o.Term, o.Tally = nil, Tally{}
	if os.longOf = nil; cap(os.long) > maxMatching {
		os.long = nil
	}
	os.revision++
}

// OwnersMatching are the owners whose term selects pods of that shape. The list is good
// until the next call.
func (c *Cluster) OwnersMatching(s *Shape) []*Owners {
	os := &c.owners
	switch {
	case s.matching.revision == os.revision:
		return s.matching.list
	case os.longOf == s && os.longRevision == os.revision:
		return os.long
	}
	list := os.long[:0]
	s.eachLabel(func(label string) {
		for _, o := range os.byLabel[label] {
			if o.Term.Matches(s, c) {
				list = append(list, o)
			}
		}
	})
	os.long, os.longOf, os.longRevision = list, s, os.revision
	if len(list) <= maxMatching {
		s.matching = cached[*Owners]{os.revision, append(s.matching.list[:0], list...)}
	}
	return list
}
