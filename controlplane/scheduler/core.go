package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
)

// A core decides where pods go. It is pure: it knows the cluster and has no
// other effect than its answer.
type core struct {
	cluster *framework.Cluster
	filters []filter
	scorers []scorer
	gates   []framework.PreEnqueue
	hints   map[string]func(*framework.Event, *framework.Pod) bool
	less    func(a, b *framework.Pod, aSince, bSince int64) bool
	names   []string // of the plugins in their table
	cycle   cycle    // what the decision at hand takes

	results         map[localKey]*nodeResults // by what local plugins look at
	answered        []localKey                // their keys, the oldest first
	reasonBytes     int                       // bytes of all their reasons
	mostReasonBytes int
	// Memory used anew for every pod.
	beyond   []*filter // those that look further than the node, and have something to say
	feasible []*framework.Node
	refusals []*framework.Status
	totals   []int64
	scores   []int64
}

type filter struct {
	framework.Filter
	pre       framework.PreFilter
	simulator framework.Simulator
	local     bool
	room      bool // depends on the pods of the node
	skip      bool // for the pod at hand
	plugin    int  // in the table
	calls
}

// calls count those of a plugin since the last look at them.
type calls struct{ prepared, asked uint32 }

type scorer struct {
	framework.Score
	pre        framework.PreScore
	normalizer framework.Normalizer
	weight     int64
	local      bool
	name       string
	skip       bool // for the pod at hand
	plugin     int  // in the table
	calls
}

func newCore(c *framework.Cluster, table []plugins.Entry) *core {
	s := &core{cluster: c, results: map[localKey]*nodeResults{}, mostReasonBytes: maxReasonBytes, hints: map[string]func(*framework.Event, *framework.Pod) bool{}}
	for i, e := range table {
		s.names = append(s.names, e.Name())
		_, local := e.Plugin.(framework.Local)
		pre, _ := e.Plugin.(framework.PreFilter)
		if g, ok := e.Plugin.(framework.PreEnqueue); ok {
			s.gates = append(s.gates, g)
		}
		if f, ok := e.Plugin.(framework.Filter); ok {
			sim, _ := e.Plugin.(framework.Simulator)
			_, room := e.Plugin.(framework.Room)
			s.filters = append(s.filters, filter{Filter: f, pre: pre, simulator: sim, local: local, room: room || sim != nil, plugin: i})
		}
		if sc, ok := e.Plugin.(framework.Score); ok && e.Weight > 0 {
			pre, _ := e.Plugin.(framework.PreScore)
			norm, _ := e.Plugin.(framework.Normalizer)
			s.scorers = append(s.scorers, scorer{Score: sc, pre: pre, normalizer: norm, weight: e.Weight, local: local, name: e.Name(), plugin: i})
		}
		if h, ok := e.Plugin.(framework.Hinter); ok {
			s.hints[e.Name()] = h.Hint
		}
		if l, ok := e.Plugin.(interface {
			Less(a, b *framework.Pod, aSince, bSince int64) bool
		}); ok {
			s.less = l.Less
		}
	}
	return s
}

func (s *core) hint(plugin string) func(*framework.Event, *framework.Pod) bool {
	return s.hints[plugin]
}

// A refusal is why no node takes a pod.
type refusal struct {
	plugins []string
	before  *framework.Status // a plugin refused before any node was looked at
	nodes   int
	reasons map[string]int
	// after is what came of trying to make room.
	after string
	err   bool
}

// String is the message of the pod's condition and of its event.
func (r *refusal) String() string {
	if r.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", r.nodes)
	if r.before != nil {
		fmt.Fprintf(&b, " %s.", strings.Join(r.before.Reasons, ", "))
	} else if len(r.reasons) > 0 {
		list := make([]string, 0, len(r.reasons))
		for reason, n := range r.reasons {
			list = append(list, fmt.Sprintf("%d %s", n, reason))
		}
		slices.Sort(list)
		fmt.Fprintf(&b, " %s.", strings.Join(list, ", "))
	}
	if r.after != "" {
		b.WriteString(" " + r.after)
	}
	return short(b.String(), maxMessage)
}

// decide finds the node for a pod, or says why there is none.
func (s *core) decide(p *framework.Pod) (*framework.Node, *refusal) {
	s.cycle.start()
	if s.cluster.Live == 0 {
		return nil, &refusal{}
	}
	st := s.prepare(p)
	s.cycle.end(preFilter, framework.CodeOf(st))
	if st != nil {
		return nil, &refusal{nodes: s.cluster.Live, before: st, plugins: []string{st.Plugin}, err: st.Code == framework.Error}
	}
	s.feasible = s.feasible[:0]
	if len(s.refusals) != len(s.cluster.Nodes) {
		s.refusals = make([]*framework.Status, len(s.cluster.Nodes))
	}
	if p.Only != nil {
		return s.decideAmong(p)
	}
	a := s.local(p)
	s.cycle.choose(rand.IntN(len(s.cluster.Nodes)))
	for slot, n := range s.cluster.Nodes {
		if n == nil || n.Object == nil {
			continue
		}
		st := a.status[slot]
		if st == nil {
			st = s.beyondLocal(p, n)
		}
		if s.refusals[slot] = st; st == nil {
			s.feasible = append(s.feasible, n)
		}
	}
	s.cycle.end(filterPoint, framework.Success)
	switch len(s.feasible) {
	case 0:
		return nil, s.whyNot()
	case 1:
		return s.feasible[0], nil
	}
	return s.best(p, a), nil
}

var notNamed = framework.Refuse(framework.Unresolvable, "NodeAffinity", "node(s) didn't satisfy plugin(s) [NodeAffinity]")

// decideAmong looks at no other nodes than those the pod names.
func (s *core) decideAmong(p *framework.Pod) (*framework.Node, *refusal) {
	named := map[*framework.Node]*framework.Status{}
	for _, name := range p.Only {
		n := s.cluster.Node(name)
		if n == nil || n.Object == nil {
			continue
		}
		s.cycle.choose(n.Slot)
		var st *framework.Status
		if len(n.Nominated) > 0 {
			st = s.withNominated(p, n)
		}
		if st == nil {
			st = s.fits(p, n)
		}
		if named[n] = st; st == nil {
			s.feasible = append(s.feasible, n)
		}
	}
	s.cycle.end(filterPoint, framework.Success)
	switch len(s.feasible) {
	case 0:
		for slot, n := range s.cluster.Nodes {
			if st, ok := named[n]; ok {
				s.refusals[slot] = st
			} else {
				s.refusals[slot] = notNamed
			}
		}
		return nil, s.whyNot()
	case 1:
		return s.feasible[0], nil
	}
	return s.best(p, s.local(p)), nil
}

// prepare asks every PreFilter.
func (s *core) prepare(p *framework.Pod) *framework.Status {
	s.beyond = s.beyond[:0]
	for i := range s.filters {
		f := &s.filters[i]
		if st := s.prefilter(f, p); st != nil {
			return st
		}
		if !f.local && !f.skip {
			s.beyond = append(s.beyond, f)
		}
	}
	return nil
}

// prefilter asks one plugin's PreFilter, if it has one.
func (s *core) prefilter(f *filter, p *framework.Pod) (st *framework.Status) {
	if f.pre == nil {
		return nil
	}
	f.prepared++
	if !s.cycle.sampled() {
		f.skip, st = f.pre.PreFilter(p)
		return st
	}
	began := time.Now()
	f.skip, st = f.pre.PreFilter(p)
	s.cycle.call(f.plugin, preFilter, skipped(framework.CodeOf(st), f.skip), began)
	return st
}

// skipped is the code of a plugin that agreed, and may have nothing to say.
func skipped(c framework.Code, skip bool) framework.Code {
	if c == framework.Success && skip {
		return framework.Skip
	}
	return c
}

// filter asks one plugin about a node.
func (s *core) filter(f *filter, p *framework.Pod, n *framework.Node) *framework.Status {
	f.asked++
	if n.Slot != s.cycle.node {
		return f.Filter.Filter(p, n)
	}
	began := time.Now()
	st := f.Filter.Filter(p, n)
	s.cycle.call(f.plugin, filterPoint, framework.CodeOf(st), began)
	return st
}

// score has one plugin rate a node.
func (s *core) score(sc *scorer, p *framework.Pod, n *framework.Node) int64 {
	sc.asked++
	if n.Slot != s.cycle.node {
		return sc.Score.Score(p, n)
	}
	began := time.Now()
	v := sc.Score.Score(p, n)
	s.cycle.call(sc.plugin, scorePoint, framework.Success, began)
	return v
}

// beyondLocal asks the plugins that look further than the node.
func (s *core) beyondLocal(p *framework.Pod, n *framework.Node) *framework.Status {
	if len(n.Nominated) > 0 {
		if st := s.withNominated(p, n); st != nil {
			return st
		}
	}
	for _, f := range s.beyond {
		if st := s.filter(f, p, n); st != nil {
			return st
		}
	}
	return nil
}

// fits asks every plugin about a node as it is given.
func (s *core) fits(p *framework.Pod, n *framework.Node) *framework.Status {
	for i := range s.filters {
		if f := &s.filters[i]; !f.skip {
			if st := s.filter(f, p, n); st != nil {
				return st
			}
		}
	}
	return nil
}

// hasRoom asks only the plugins that other pods make a difference to.
func (s *core) hasRoom(p *framework.Pod, n *framework.Node) bool {
	for i := range s.filters {
		if f := &s.filters[i]; f.room && !f.skip && s.filter(f, p, n) != nil {
			return false
		}
	}
	return true
}

// simulate has the plugins count a pod in or out on a node.
func (s *core) simulate(p, other *framework.Pod, n *framework.Node, delta int32) {
	for i := range s.filters {
		if f := &s.filters[i]; f.simulator != nil && !f.skip {
			f.simulator.Simulate(p, other, n, delta)
		}
	}
}

// withNominated asks about the node as it will be once the pods that made room
// there, and are no less important, have come.
func (s *core) withNominated(p *framework.Pod, n *framework.Node) *framework.Status {
	var nominated []*framework.Pod
	for _, o := range n.Nominated {
		if o.UID != p.UID && o.Shape.Priority >= p.Shape.Priority {
			nominated = append(nominated, o)
		}
	}
	if len(nominated) == 0 {
		return nil
	}
	full := n.Copy()
	for _, o := range nominated {
		full.With(o)
		s.simulate(p, o, n, 1)
	}
	st := s.fits(p, full)
	for _, o := range nominated {
		s.simulate(p, o, n, -1)
	}
	return st
}

func (s *core) whyNot() *refusal {
	r := &refusal{nodes: s.cluster.Live, reasons: map[string]int{}}
	for slot, n := range s.cluster.Nodes {
		if n == nil || n.Object == nil {
			continue
		}
		st := s.refusals[slot]
		if !slices.Contains(r.plugins, st.Plugin) {
			r.plugins = append(r.plugins, st.Plugin)
		}
		for _, reason := range st.Reasons {
			r.reasons[reason]++
		}
	}
	return r
}

// best is a node with the greatest sum of weighted scores, any of those equal.
func (s *core) best(p *framework.Pod, a *nodeResults) *framework.Node {
	n := len(s.feasible)
	s.totals, s.scores = slices.Grow(s.totals[:0], n)[:n], slices.Grow(s.scores[:0], n)[:n]
	for i, node := range s.feasible {
		s.totals[i] = a.plain[node.Slot]
	}
	s.prepareScores(p)
	s.cycle.end(preScore, framework.Success)
	for k := range s.scorers {
		sc := &s.scorers[k]
		if sc.skip {
			continue
		}
		for i, node := range s.feasible {
			if sc.local {
				s.scores[i] = a.scores[k][node.Slot]
			} else {
				s.scores[i] = s.score(sc, p, node)
			}
		}
		if sc.normalizer != nil {
			s.normalize(sc, p)
		}
		for i := range s.feasible {
			s.totals[i] += sc.weight * s.scores[i]
		}
	}
	s.cycle.end(scorePoint, framework.Success)
	top, ties, pick := s.totals[0], 1, 0
	for i := 1; i < n; i++ {
		switch t := s.totals[i]; {
		case t > top:
			top, ties, pick = t, 1, i
		case t == top:
			if ties++; rand.IntN(ties) == 0 {
				pick = i
			}
		}
	}
	return s.feasible[pick]
}

// prepareScores asks every PreScore of those that have not answered before.
func (s *core) prepareScores(p *framework.Pod) {
	for k := range s.scorers {
		sc := &s.scorers[k]
		if sc.skip = sc.local && sc.normalizer == nil; sc.skip || sc.pre == nil {
			continue
		}
		sc.prepared++
		if !s.cycle.sampled() {
			sc.skip = sc.pre.PreScore(p, s.feasible)
			continue
		}
		began := time.Now()
		sc.skip = sc.pre.PreScore(p, s.feasible)
		s.cycle.call(sc.plugin, preScore, skipped(framework.Success, sc.skip), began)
	}
}

func (s *core) normalize(sc *scorer, p *framework.Pod) {
	if !s.cycle.sampled() {
		sc.normalizer.Normalize(p, s.feasible, s.scores)
		return
	}
	began := time.Now()
	sc.normalizer.Normalize(p, s.feasible, s.scores)
	s.cycle.call(sc.plugin, normalizeScore, framework.Success, began)
}
