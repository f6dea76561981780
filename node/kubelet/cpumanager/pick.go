package cpumanager

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"k8s.io/utils/cpuset"
)

// A picker takes CPUs from those that are free, whole groups first, so that what remains
// is whole too.
type picker struct {
	t    Topology
	free cpuset.CPUSet
	need int
	got  cpuset.CPUSet
	// spread takes CPUs of different cores.
	spread bool
}

func (p *picker) take(cpus cpuset.CPUSet) {
	p.got, p.free, p.need = p.got.Union(cpus), p.free.Difference(cpus), p.need-cpus.Size()
}

// sorted are groups, those with fewer free CPUs first.
func (p *picker) sorted(l level, within cpuset.CPUSet) []int {
	ids := p.t.groups(l, within)
	slices.SortStableFunc(ids, func(a, b int) int {
		return cmp.Or(cmp.Compare(p.t.of(l, a).Intersection(p.free).Size(), p.t.of(l, b).Intersection(p.free).Size()), cmp.Compare(a, b))
	})
	return ids
}

// levels are sockets and NUMA nodes, the larger ones first.
func (p *picker) levels() (outer, inner level) {
	all := p.t.all()
	if len(p.t.groups(bySocket, all)) >= len(p.t.groups(byNode, all)) {
		return byNode, bySocket
	}
	return bySocket, byNode
}

// ordered are the groups of a level in the order of those of the levels around it.
func (p *picker) ordered(levels ...level) []int {
	return p.order(p.free, levels)
}

func (p *picker) order(within cpuset.CPUSet, levels []level) (ids []int) {
	for _, id := range p.sorted(levels[0], within) {
		if len(levels) == 1 {
			ids = append(ids, id)
			continue
		}
		for _, below := range p.order(within.Intersection(p.t.of(levels[0], id)), levels[1:]) {
			if !slices.Contains(ids, below) {
				ids = append(ids, below)
			}
		}
	}
	return ids
}

// whole takes the groups of a level of which nothing is taken.
func (p *picker) whole(levels ...level) {
	l := levels[len(levels)-1]
	for _, id := range p.ordered(levels...) {
		if group := p.t.of(l, id); group.IsSubsetOf(p.free) && group.Size() <= p.need {
			p.take(group)
		}
	}
}

// caches takes CPUs of as few caches as can be.
func (p *picker) caches() {
	p.whole(byNode, byCache)
	for _, id := range p.ordered(byNode, byCache) {
		if p.need == 0 {
			return
		}
		group := p.t.of(byCache, id).Intersection(p.free)
		if group.Size() < p.need {
			continue
		}
		part := &picker{t: p.t, free: group, need: p.need, spread: p.spread}
		part.cores()
		if part.need == 0 {
			p.take(part.got)
		}
	}
}

// cores takes whole cores, then single CPUs.
func (p *picker) cores() {
	outer, inner := p.levels()
	if p.spread {
		for _, id := range p.ordered(outer, inner) {
			for _, cpu := range p.t.of(inner, id).Intersection(p.free).List() {
				if p.need == 0 {
					return
				}
				p.take(cpuset.New(cpu))
			}
		}
		return
	}
	p.whole(outer, inner, byCore)
	for _, id := range p.ordered(outer, inner, byCore) {
		for _, cpu := range p.t.of(byCore, id).Intersection(p.free).List() {
			if p.need == 0 {
				return
			}
			p.take(cpuset.New(cpu))
		}
	}
}

// packed picks CPUs as close together as can be.
func (t Topology) packed(free cpuset.CPUSet, n int, spread, caches bool) (cpuset.CPUSet, error) {
	p := &picker{t: t, free: free, need: n, spread: spread}
	if n > free.Size() {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	outer, inner := p.levels()
	p.whole(outer)
	p.whole(outer, inner)
	if caches {
		p.caches()
	}
	p.cores()
	if p.need > 0 {
		return cpuset.New(), errors.New("failed to allocate cpus")
	}
	return p.got, nil
}

// distributed picks CPUs of as few NUMA nodes as can be, as many of each of them, a
// multiple of group. Of several choices it is the one that leaves the nodes most alike.
// Where there is none, CPUs are packed.
func (t Topology) distributed(free cpuset.CPUSet, n, group int) (cpuset.CPUSet, error) {
	if n > free.Size() {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	if n%group != 0 {
		return t.packed(free, n, false, false)
	}
	nodes := t.groups(byNode, free)
	for k := 1; k <= len(nodes); k++ {
		best, least := map[int]int(nil), math.Inf(1)
		combinations(nodes, k, func(some []int) {
			share, ok := t.shares(free, some, n, group)
			if !ok {
				return
			}
			if d := t.unevenness(free, share); d < least {
				best, least = share, d
			}
		})
		if best == nil {
			continue
		}
		got := cpuset.New()
		for _, node := range nodes {
			cpus, err := t.packed(free.Intersection(t.of(byNode, node)), best[node], false, false)
			if err != nil {
				return cpuset.New(), err
			}
			got = got.Union(cpus)
		}
		return got, nil
	}
	return t.packed(free, n, false, false)
}

// shares parts n CPUs among nodes evenly, by groups; those that are left over go to the
// nodes with most free ones.
func (t Topology) shares(free cpuset.CPUSet, nodes []int, n, group int) (map[int]int, bool) {
	each := n / len(nodes) / group * group
	rest := (n - each*len(nodes)) / group
	if each == 0 {
		return nil, false
	}
	share := map[int]int{}
	left := func(node int) int { return free.Intersection(t.of(byNode, node)).Size() - share[node] }
	for _, node := range nodes {
		if left(node) < each {
			return nil, false
		}
		share[node] = each
	}
	order := slices.Clone(nodes)
	for ; rest > 0; rest-- {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(share[a], share[b]), cmp.Compare(left(b), left(a))) })
		at := slices.IndexFunc(order, func(node int) bool { return left(node) >= group })
		if at < 0 {
			return nil, false
		}
		share[order[at]] += group
	}
	return share, true
}

// unevenness is the deviation of what nodes have left.
func (t Topology) unevenness(free cpuset.CPUSet, share map[int]int) float64 {
	nodes := t.Nodes()
	var sum, squares float64
	for _, node := range nodes {
		left := float64(free.Intersection(t.of(byNode, node)).Size() - share[node])
		sum += left
		squares += left * left
	}
	mean := sum / float64(len(nodes))
	return math.Sqrt(max(squares/float64(len(nodes))-mean*mean, 0))
}

// combinations calls f with every choice of k of some numbers.
func combinations(of []int, k int, f func([]int)) {
	var choose func(from int, some []int)
	choose = func(from int, some []int) {
		if len(some) == k {
			f(slices.Clone(some))
			return
		}
		for i := from; i < len(of); i++ {
			choose(i+1, append(some, of[i]))
		}
	}
	choose(0, nil)
}
