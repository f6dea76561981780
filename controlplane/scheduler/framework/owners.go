package framework

import "slices"

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
}

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
			os.byLabel[o.label] = append(os.byLabel[o.label], o)
			os.revision++
		}
		o.add(int32(p.Node.Slot), delta)
		if o.total += int(delta); o.total == 0 {
			delete(os.byKey, k)
			if rest := slices.DeleteFunc(os.byLabel[o.label], func(x *Owners) bool { return x == o }); len(rest) > 0 {
				os.byLabel[o.label] = rest
			} else {
				delete(os.byLabel, o.label)
			}
			os.revision++
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

// OwnersMatching are the owners whose term selects pods of that shape.
func (c *Cluster) OwnersMatching(s *Shape) []*Owners {
	os := &c.owners
	if s.matching.revision == os.revision {
		return s.matching.list
	}
	list := s.matching.list[:0]
	s.eachLabel(func(label string) {
		for _, o := range os.byLabel[label] {
			if o.Term.Matches(s, c) {
				list = append(list, o)
			}
		}
	})
	s.matching = cached[*Owners]{os.revision, list}
	return list
}
