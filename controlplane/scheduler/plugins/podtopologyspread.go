package plugins

import (
	"math"

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
	// strict ignores, in scoring, nodes that lack one of the labels.
	strict bool
}

// Selectors finds what spreads pods that say nothing themselves.
type Selectors interface {
	// SelectorOf selects the pods of the Services and the controller a pod
	// belongs to; nil for none.
	SelectorOf(s *framework.Shape) labels.Selector
}

// A constraint is one the pod has, and the state of its domains.
type constraint struct {
	topology   *framework.Topology
	term       *framework.Term
	tally      *framework.Tally
	key        string
	maxSkew    int64
	minDomains int64
	self       int64 // 1 if the pod is itself one of those counted
	affinity   bool  // count only nodes the pod selects
	taints     bool  // count only nodes the pod tolerates
	nothing    bool  // selects nothing: an empty selector
	count      []int64
	known      []bool // domains with a node that counts
	domains    int64
	least      int64
	weight     float64
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

// constraints parses those of one kind into list, whose memory it reuses.
func (s *PodTopologySpread) constraints(list []constraint, p *framework.Pod, kind corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	list = list[:0]
	from, defaults := p.Spread, labels.Selector(nil)
	if len(from) == 0 {
		if kind == corev1.DoNotSchedule {
			return list, nil
		}
		if defaults = s.selectors.SelectorOf(p.Shape); defaults == nil || defaults.Empty() {
			return list, nil
		}
		from = byDefault
	}
	for i := range from {
		f := &from[i]
		if f.WhenUnsatisfiable != kind {
			continue
		}
		selector := defaults
		if selector == nil {
			var err error
			if selector, err = spreadSelector(f, p.Shape.Labels); err != nil {
				return nil, err
			}
		}
		if len(list) < cap(list) {
			list = list[:len(list)+1]
		} else {
			list = append(list, constraint{})
		}
		c := &list[len(list)-1]
		*c = constraint{
			count: c.count, known: c.known, key: f.TopologyKey,
			topology: s.cluster.Topology(f.TopologyKey),
			term:     framework.NewTerm(f.TopologyKey, []string{p.Shape.Namespace}, nil, selector),
			maxSkew:  int64(f.MaxSkew), minDomains: 1, nothing: selector.Empty(),
			affinity: f.NodeAffinityPolicy == nil || *f.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			taints:   f.NodeTaintsPolicy != nil && *f.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if f.MinDomains != nil {
			c.minDomains = int64(*f.MinDomains)
		}
		if selector.Matches(p.Shape.Labels) {
			c.self = 1
		}
		c.tally = s.cluster.Tally(true, c.term)
	}
	return list, nil
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

// counts tells whether a node's pods are counted.
func (c *constraint) counts(p *framework.Pod, n *framework.Node) bool {
	if c.affinity && selectsNodes(p) {
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
	var err error
	if s.hard, err = s.constraints(s.hard, p, corev1.DoNotSchedule); err != nil {
		return false, framework.Refuse(framework.Error, s.Name(), "get constraints from pod: "+err.Error())
	}
	if len(s.hard) == 0 {
		return true, nil
	}
	for i := range s.hard {
		s.hard[i].reset()
	}
	for _, n := range s.cluster.Nodes {
		if n == nil || n.Object == nil || !hasAll(s.hard, n) {
			continue
		}
		for i := range s.hard {
			if c := &s.hard[i]; c.counts(p, n) {
				d := c.topology.Of(n)
				c.known[d] = true
				if !c.nothing {
					c.count[d] += int64(c.tally.Of(n.Slot))
				}
			}
		}
	}
	for i := range s.hard {
		s.hard[i].findLeast()
	}
	return false, nil
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
	var err error
	if s.soft, err = s.constraints(s.soft, p, corev1.ScheduleAnyway); err != nil || len(s.soft) == 0 {
		return true
	}
	s.strict = len(p.Spread) > 0
	eligible := 0
	for i := range s.soft {
		s.soft[i].reset()
	}
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
