package plugins

import "knarr/controlplane/scheduler/framework"

// InterPodAffinity keeps pods near the pods they need and apart from those
// they, or that, do not bear, and prefers likewise.
type InterPodAffinity struct {
	cluster *framework.Cluster

	// One each of a topology: pods may have terms by the thousand.
	affinity, anti []domains
	existing       []domains        // required anti-affinity of placed pods
	needed         *framework.Tally // placed pods that match all affinity terms
	anyMatch       int64            // how many of them are in a domain
	selfMatch      bool
	wishes         []domains
}

// domains counts something by the domains of a topology.
type domains struct {
	*framework.Topology
	count []int64
}

var (
	_ framework.PreFilter  = (*InterPodAffinity)(nil)
	_ framework.Filter     = (*InterPodAffinity)(nil)
	_ framework.Simulator  = (*InterPodAffinity)(nil)
	_ framework.Normalizer = (*InterPodAffinity)(nil)
)

var (
	farFromNeeded = framework.Refuse(framework.Unresolvable, "InterPodAffinity", "node(s) didn't match pod affinity rules")
	nearUnwanted  = framework.Refuse(framework.Unschedulable, "InterPodAffinity", "node(s) didn't match pod anti-affinity rules")
	unwantedThere = framework.Refuse(framework.Unschedulable, "InterPodAffinity", "node(s) didn't satisfy existing pods anti-affinity rules")
)

// Name is the plugin's.
func (*InterPodAffinity) Name() string { return "InterPodAffinity" }

// of is the one of the term's topology. If it is new its count is zeroed, in memory
// that the list had before.
func (a *InterPodAffinity) of(all *[]domains, t *framework.Term) (d *domains, isNew bool) {
	topo, list := a.cluster.Topology(t.TopologyKey), *all
	for i := range list {
		if list[i].Topology == topo {
			return &list[i], false
		}
	}
	if len(list) < cap(list) {
		list = list[:len(list)+1]
	} else {
		list = append(list, domains{})
	}
	*all = list
	d = &list[len(list)-1]
	d.Topology = topo
	if cap(d.count) < topo.Size {
		d.count = make([]int64, topo.Size, topo.Size+topo.Size/4+4)
	} else {
		d.count = d.count[:topo.Size]
		clear(d.count)
	}
	return d, true
}

// add spreads a tally over the domains of the term's topology.
func (a *InterPodAffinity) add(all *[]domains, t *framework.Term, tally *framework.Tally, weight int64) (sum int64) {
	d, _ := a.of(all, t)
	return d.spread(tally, weight)
}

// spread adds weight for each counted pod to its domain, and returns how many
// landed in one.
func (d *domains) spread(t *framework.Tally, weight int64) (sum int64) {
	for i, slot := range t.Nodes {
		if dom := d.At(slot); dom >= 0 {
			d.count[dom] += weight * int64(t.Counts[i])
			sum += int64(t.Counts[i])
		}
	}
	return sum
}

func (d *domains) at(n *framework.Node) int64 {
	if dom := d.Of(n); dom >= 0 {
		return d.count[dom]
	}
	return 0
}

// PreFilter counts per domain what the terms select.
func (a *InterPodAffinity) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	s := p.Shape
	if s.Err != nil {
		return false, framework.Refuse(framework.Unresolvable, a.Name(), "parsing pod: "+s.Err.Error())
	}
	a.affinity, a.anti, a.existing, a.needed, a.anyMatch = a.affinity[:0], a.anti[:0], a.existing[:0], nil, 0
	if len(s.Affinity) > 0 {
		// Only pods that every term selects count for any of them.
		a.needed = a.cluster.Tally(false, s.Affinity...)
		for _, t := range s.Affinity {
			if d, isNew := a.of(&a.affinity, t); isNew {
				a.anyMatch += d.spread(a.needed, 1)
			}
		}
		a.selfMatch = a.needed.Matches(s, a.cluster)
	}
	for _, t := range s.AntiAffinity {
		a.add(&a.anti, t, a.cluster.Tally(false, t), 1)
	}
	for _, o := range a.cluster.OwnersMatching(s) {
		if o.TermKind == framework.RequiredAntiAffinity {
			a.add(&a.existing, o.Term, &o.Tally, 1)
		}
	}
	return len(a.affinity)+len(a.anti)+len(a.existing) == 0, nil
}

// Simulate counts other in or out.
func (a *InterPodAffinity) Simulate(p, other *framework.Pod, n *framework.Node, delta int32) {
	add := func(d *domains) bool {
		if dom := d.Of(n); dom >= 0 && int(dom) < len(d.count) {
			d.count[dom] += int64(delta)
			return true
		}
		return false
	}
	if len(a.affinity) > 0 && a.needed.Matches(other.Shape, a.cluster) {
		for i := range a.affinity {
			if add(&a.affinity[i]) {
				a.anyMatch += int64(delta)
			}
		}
	}
	for _, t := range p.AntiAffinity {
		if t.Matches(other.Shape, a.cluster) {
			d, _ := a.of(&a.anti, t)
			add(d)
		}
	}
	for _, t := range other.AntiAffinity {
		if t.Matches(p.Shape, a.cluster) {
			d, _ := a.of(&a.existing, t)
			add(d)
		}
	}
}

// Filter looks the node's domains up.
func (a *InterPodAffinity) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	near := true
	for i := range a.affinity {
		d := &a.affinity[i]
		if d.Of(n) < 0 {
			return farFromNeeded
		}
		near = near && d.at(n) > 0
	}
	// The first of a group that needs its own kind may go anywhere.
	if !near && !(a.anyMatch == 0 && a.selfMatch) {
		return farFromNeeded
	}
	for i := range a.anti {
		if a.anti[i].at(n) > 0 {
			return nearUnwanted
		}
	}
	for i := range a.existing {
		if a.existing[i].at(n) > 0 {
			return unwantedThere
		}
	}
	return nil
}

// PreScore counts, per domain, the wishes of the pod about those placed and of
// those about the pod.
func (a *InterPodAffinity) PreScore(p *framework.Pod, _ []*framework.Node) bool {
	a.wishes = a.wishes[:0]
	any := false
	for _, w := range p.Preferred {
		any = a.add(&a.wishes, w.Term, a.cluster.Tally(false, w.Term), w.Weight) > 0 || any
	}
	for _, o := range a.cluster.OwnersMatching(p.Shape) {
		weight := o.Weight
		switch o.TermKind {
		case framework.RequiredAntiAffinity:
			continue
		case framework.RequiredAffinity:
			weight = 1
		}
		any = a.add(&a.wishes, o.Term, &o.Tally, weight) > 0 || any
	}
	return !any
}

// Score adds the wishes up.
func (a *InterPodAffinity) Score(_ *framework.Pod, n *framework.Node) (sum int64) {
	for i := range a.wishes {
		sum += a.wishes[i].at(n)
	}
	return sum
}

// Normalize puts the least at 0 and the greatest at 100.
func (*InterPodAffinity) Normalize(_ *framework.Pod, _ []*framework.Node, scores []int64) {
	low, high := scores[0], scores[0]
	for _, s := range scores {
		low, high = min(low, s), max(high, s)
	}
	for i, s := range scores {
		if scores[i] = 0; high > low {
			scores[i] = int64(framework.MaxScore * (float64(s-low) / float64(high-low)))
		}
	}
}

// Hint is a pod placed, gone or relabelled that a term selects or whose term
// selects, or a node with a new place in a topology.
func (a *InterPodAffinity) Hint(e *framework.Event, p *framework.Pod) bool {
	const about = framework.PodPlaced | framework.PodGone | framework.PodLabels
	switch {
	case e.Action&(framework.PodSelf|framework.NamespaceLabels|framework.NodeAdded|framework.NodeLabels) != 0:
		return true
	case e.Action&about == 0:
		return false
	}
	for _, other := range []*framework.Pod{e.Pod, e.Old} {
		if other != nil && a.concerns(p, other) {
			return true
		}
	}
	return false
}

func (a *InterPodAffinity) concerns(p, other *framework.Pod) bool {
	for _, list := range [][]*framework.Term{p.Affinity, p.AntiAffinity} {
		for _, t := range list {
			if t.Matches(other.Shape, a.cluster) {
				return true
			}
		}
	}
	for _, t := range other.AntiAffinity {
		if t.Matches(p.Shape, a.cluster) {
			return true
		}
	}
	return false
}
