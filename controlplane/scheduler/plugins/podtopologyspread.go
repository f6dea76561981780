package plugins

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/scheduler/framework"
)

// PodTopologySpread keeps like pods evenly spread over domains, or prefers so.
type PodTopologySpread struct {
	cluster   *framework.Cluster
	selectors Selectors

	hard, soft []constraint
	// last is what findDomains found for constraints on these keys.
	last         []found
	lastRevision uint64
	// strict ignores, in scoring, nodes that lack one of the labels.
	strict bool
}

// found are the domains of a key that have nodes.
type found struct {
	key   string
	known []bool
}

// Selectors finds what spreads pods that say nothing themselves.
type Selectors interface {
	// SelectorOf selects the pods of the Services and the controller a pod
	// belongs to; nil for none.
	SelectorOf(s *framework.Shape) labels.Selector
}

// A rule is a constraint as parsed, once for all pods of a shape.
type rule struct {
	term       *framework.Term
	key        string
	maxSkew    int64
	minDomains int64
	self       int64 // 1 if the pod is itself one of those counted
	affinity   bool  // count only nodes the pod selects
	taints     bool  // count only nodes the pod tolerates
	nothing    bool  // counts nothing: an empty selector
}

// rules are those of a shape.
type rules struct {
	hard, soft []rule
	err        error
}

// A constraint is a rule and the state of its domains.
type constraint struct {
	*rule
	topology *framework.Topology
	tally    *framework.Tally
	count    []int64
	known    []bool // domains with a node that counts
	domains  int64
	least    int64
	weight   float64
}

var (
	_ framework.PreFilter  = (*PodTopologySpread)(nil)
	_ framework.Filter     = (*PodTopologySpread)(nil)
	_ framework.Simulator  = (*PodTopologySpread)(nil)
	_ framework.Normalizer = (*PodTopologySpread)(nil)
)

var (
	uneven  = framework.Refuse(framework.Unschedulable, "PodTopologySpread", "node(s) didn't match pod topology spread constraints")
	unplace = framework.Refuse(framework.Unresolvable, "PodTopologySpread", "node(s) didn't match pod topology spread constraints (missing required label)")
)

// Pods that say nothing prefer to be spread so.
var byDefault = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

// Name is the plugin's.
func (*PodTopologySpread) Name() string { return "PodTopologySpread" }

// rulesOf gives those of a shape, remembered until the Services and controllers
// of pods change, where they matter.
func (s *PodTopologySpread) rulesOf(p *framework.Pod) *rules {
	var siblings labels.Selector
	if len(p.Spread) == 0 {
		siblings = s.selectors.SelectorOf(p.Shape)
	}
	if r, ok := p.Spreading.(*rules); ok && p.SpreadingRevision == p.SiblingsRevision {
		return r
	}
	r := &rules{}
	p.Spreading, p.SpreadingRevision = r, p.SiblingsRevision
	from := p.Spread
	if len(from) == 0 {
		if siblings == nil || siblings.Empty() {
			return r
		}
		from = byDefault
	}
	for i := range from {
		f := &from[i]
		selector := siblings
		if selector == nil {
			if selector, r.err = spreadSelector(f, p.Shape.Labels); r.err != nil {
				return r
			}
		}
		one := rule{
			term: framework.NewTerm(f.TopologyKey, []string{p.Shape.Namespace}, nil, selector), key: f.TopologyKey,
			maxSkew: int64(f.MaxSkew), minDomains: 1, nothing: selector.Empty(),
			affinity: f.NodeAffinityPolicy == nil || *f.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			taints:   f.NodeTaintsPolicy != nil && *f.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		one.affinity = one.affinity && selectsNodes(p)
		if f.MinDomains != nil {
			one.minDomains = int64(*f.MinDomains)
		}
		if selector.Matches(p.Shape.Labels) {
			one.self = 1
		}
		if f.WhenUnsatisfiable == corev1.DoNotSchedule {
			r.hard = append(r.hard, one)
		} else {
			r.soft = append(r.soft, one)
		}
	}
	return r
}

// begin makes constraints of rules, in the memory of list.
func (s *PodTopologySpread) begin(list []constraint, from []rule) []constraint {
	list = list[:0]
	for i := range from {
		if len(list) < cap(list) {
			list = list[:len(list)+1]
		} else {
			list = append(list, constraint{})
		}
		c, r := &list[len(list)-1], &from[i]
		*c = constraint{rule: r, count: c.count, known: c.known, topology: s.cluster.Topology(r.key), tally: s.cluster.Tally(true, r.term)}
		c.reset()
	}
	return list
}

func spreadSelector(c *corev1.TopologySpreadConstraint, podLabels labels.Set) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return nil, err
	}
	same := labels.Set{}
	for _, k := range c.MatchLabelKeys {
		if v, ok := podLabels[k]; ok {
			same[k] = v
		}
	}
	if len(same) == 0 {
		return selector, nil
	}
	reqs, ok := selector.Requirements()
	if !ok {
		return selector, nil
	}
	return labels.SelectorFromSet(same).Add(reqs...), nil
}

// reset makes room for the topology's domains.
func (c *constraint) reset() {
	n := c.topology.Size
	if cap(c.count) < n {
		c.count, c.known = make([]int64, n, n+n/4+4), make([]bool, n, n+n/4+4)
	}
	c.count, c.known = c.count[:n], c.known[:n]
	clear(c.count)
	clear(c.known)
}

// counts reports whether a node's pods are counted.
func (c *constraint) counts(p *framework.Pod, n *framework.Node) bool {
	if c.affinity {
		if ok, _ := p.NodeAffinity.Match(n.Object); !ok {
			return false
		}
	}
	return !c.taints || len(n.Object.Spec.Taints) == 0 || toleratesAll(p, n.Object)
}

func hasAll(cs []constraint, n *framework.Node) bool {
	for i := range cs {
		if cs[i].topology.Of(n) < 0 {
			return false
		}
	}
	return true
}

// PreFilter counts the pods of every domain.
func (s *PodTopologySpread) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	r := s.rulesOf(p)
	if r.err != nil {
		return false, framework.Refuse(framework.Error, s.Name(), "get constraints from pod: "+r.err.Error())
	}
	if len(r.hard) == 0 {
		s.hard = s.hard[:0]
		return true, nil
	}
	s.hard = s.begin(s.hard, r.hard)
	s.findDomains(p)
	for i := range s.hard {
		c := &s.hard[i]
		if !c.nothing {
			for k, slot := range c.tally.Nodes {
				n := s.cluster.Nodes[slot]
				if n != nil && n.Object != nil && hasAll(s.hard, n) && c.counts(p, n) {
					c.count[c.topology.Of(n)] += int64(c.tally.Counts[k])
				}
			}
		}
		c.findLeast()
	}
	return false, nil
}

// findDomains marks the domains that have nodes, as it did for the last pod if
// that asked the same of the same nodes.
func (s *PodTopologySpread) findDomains(p *framework.Pod) {
	plain := true
	same := len(s.last) == len(s.hard) && s.lastRevision == s.cluster.Revision
	for i := range s.hard {
		c := &s.hard[i]
		plain = plain && !c.affinity && !c.taints
		same = same && s.last[i].key == c.key
	}
	if plain && same {
		for i := range s.hard {
			copy(s.hard[i].known, s.last[i].known)
		}
		return
	}
	for _, n := range s.cluster.Nodes {
		if n == nil || n.Object == nil || !hasAll(s.hard, n) {
			continue
		}
		for i := range s.hard {
			if c := &s.hard[i]; c.counts(p, n) {
				c.known[c.topology.Of(n)] = true
			}
		}
	}
	if plain {
		s.last, s.lastRevision = s.last[:0], s.cluster.Revision
		for i := range s.hard {
			s.last = append(s.last, found{s.hard[i].key, slices.Clone(s.hard[i].known)})
		}
	}
}

func (c *constraint) findLeast() {
	c.least, c.domains = math.MaxInt32, 0
	for d, known := range c.known {
		if known {
			c.domains++
			c.least = min(c.least, c.count[d])
		}
	}
	if c.domains < c.minDomains {
		c.least = 0
	}
}

// Simulate counts other in or out.
func (s *PodTopologySpread) Simulate(p, other *framework.Pod, n *framework.Node, delta int32) {
	if other.Shape.Namespace != p.Shape.Namespace || !hasAll(s.hard, n) {
		return
	}
	for i := range s.hard {
		c := &s.hard[i]
		if c.tally.Matches(other.Shape, s.cluster) && c.counts(p, n) {
			c.count[c.topology.Of(n)] += int64(delta)
			c.findLeast()
		}
	}
}

// Filter compares the node's domain with the emptiest.
func (s *PodTopologySpread) Filter(_ *framework.Pod, n *framework.Node) *framework.Status {
	for i := range s.hard {
		c := &s.hard[i]
		d := c.topology.Of(n)
		if d < 0 {
			return unplace
		}
		if c.count[d]+c.self-c.least > c.maxSkew {
			return uneven
		}
	}
	return nil
}

// PreScore counts the pods of the domains that feasible nodes are in.
func (s *PodTopologySpread) PreScore(p *framework.Pod, feasible []*framework.Node) bool {
	r := s.rulesOf(p)
	if len(r.soft) == 0 {
		return true
	}
	s.soft = s.begin(s.soft, r.soft)
	s.strict = len(p.Spread) > 0
	eligible := 0
	for _, n := range feasible {
		if s.strict && !hasAll(s.soft, n) {
			continue
		}
		eligible++
		for i := range s.soft {
			c := &s.soft[i]
			if d := c.topology.Of(n); d >= 0 && !c.known[d] {
				c.known[d] = true
				c.domains++
			}
		}
	}
	for i := range s.soft {
		c := &s.soft[i]
		size := c.domains
		if c.key == corev1.LabelHostname {
			size = int64(eligible)
		} else if !s.strict {
			// Nodes without the label are one more domain, named "".
			size = s.withUnlabelled(c, feasible)
		}
		c.weight = math.Log(float64(size + 2))
		if c.nothing {
			continue
		}
		for k, slot := range c.tally.Nodes {
			n := s.cluster.Nodes[slot]
			if n == nil || n.Object == nil || s.strict && !hasAll(s.soft, n) {
				continue
			}
			d := c.topology.Of(n)
			if d < 0 || !c.known[d] || c.key != corev1.LabelHostname && !c.counts(p, n) {
				continue
			}
			c.count[d] += int64(c.tally.Counts[k])
		}
	}
	return false
}

func (s *PodTopologySpread) withUnlabelled(c *constraint, feasible []*framework.Node) int64 {
	for _, n := range feasible {
		if c.topology.Of(n) < 0 {
			return c.domains + 1
		}
	}
	return c.domains
}

// ignored marks, between Score and Normalize, nodes that do not take part.
const ignored = -1

// Score is greater the more like pods there are.
func (s *PodTopologySpread) Score(_ *framework.Pod, n *framework.Node) int64 {
	if s.strict && !hasAll(s.soft, n) {
		return ignored
	}
	var sum float64
	for i := range s.soft {
		c := &s.soft[i]
		if d := c.topology.Of(n); d >= 0 {
			sum += float64(c.count[d])*c.weight + float64(c.maxSkew-1)
		}
	}
	return int64(math.Round(sum))
}

// Normalize makes the fewest the best.
func (*PodTopologySpread) Normalize(_ *framework.Pod, _ []*framework.Node, scores []int64) {
	low, high := int64(math.MaxInt64), int64(0)
	for _, s := range scores {
		if s != ignored {
			low, high = min(low, s), max(high, s)
		}
	}
	for i, s := range scores {
		switch {
		case s == ignored:
			scores[i] = 0
		case high == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (high + low - s) / high
		}
	}
}

// Hint is a like pod placed, gone or relabelled, or a node that came, went or
// changed its place.
func (s *PodTopologySpread) Hint(e *framework.Event, p *framework.Pod) bool {
	switch {
	case e.Action&(framework.PodSelf|framework.NodeAdded|framework.NodeLabels|framework.NodeTaints) != 0:
		return true
	case e.Action&(framework.PodPlaced|framework.PodGone|framework.PodLabels) == 0:
		return false
	}
	for _, other := range []*framework.Pod{e.Pod, e.Old} {
		if other == nil || other.Shape.Namespace != p.Shape.Namespace {
			continue
		}
		for i := range p.Spread {
			sel, err := spreadSelector(&p.Spread[i], p.Shape.Labels)
			if err != nil || sel.Matches(other.Shape.Labels) {
				return true
			}
		}
	}
	return false
}
