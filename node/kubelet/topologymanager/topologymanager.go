// Package topologymanager finds the NUMA nodes that the CPUs, devices and memory of a
// container can all be near, and says whether a pod is taken that they cannot. It reads
// what each resource hints at, and writes nothing.
package topologymanager

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
)

// The policies and scopes.
const (
	None       = "none"
	BestEffort = "best-effort"
	Restricted = "restricted"
	SingleNode = "single-numa-node"

	ContainerScope = "container"
	PodScope       = "pod"
)

// defaultMaxNodes is how many NUMA nodes a machine may have, since all sets of them are
// looked at.
const defaultMaxNodes = 8

// Nodes is a set of NUMA nodes; empty, it stands for any.
type Nodes uint64

// NodesOf is the set of some nodes.
func NodesOf(ids ...int) (n Nodes) {
	for _, id := range ids {
		n |= 1 << id
	}
	return n
}

// Count is how many they are.
func (n Nodes) Count() int { return bits.OnesCount64(uint64(n)) }

// Has says whether a node is among them.
func (n Nodes) Has(id int) bool { return n&(1<<id) != 0 }

// IDs are the nodes in order.
func (n Nodes) IDs() (ids []int) {
	for id := range 64 {
		if n.Has(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Map is the set by the numbers that devices have them by; nil for any.
func (n Nodes) Map() map[int64]bool {
	if n == 0 {
		return nil
	}
	m := map[int64]bool{}
	for _, id := range n.IDs() {
		m[int64(id)] = true
	}
	return m
}

// narrower says whether n is better than o by being smaller, or of lower nodes.
func (n Nodes) narrower(o Nodes) bool {
	if a, b := n.Count(), o.Count(); a != b {
		return a < b
	}
	return n < o
}

// A Hint is a set of nodes that a resource could be given from. One that is not
// preferred needs more nodes than would be needed if nobody had taken any.
type Hint struct {
	Nodes     Nodes
	Preferred bool
}

// Hints are those of one resource: nil where it does not matter, empty where it cannot be
// given at all.
type Hints []Hint

// A Policy decides.
type Policy struct {
	// Name is that of upstream's policy, Scope is pod or container.
	Name, Scope string
	// All are the machine's nodes.
	All Nodes
	// Closest prefers nodes that are close to each other to few ones; Distances are
	// between them, by node.
	Closest   bool
	Distances map[int]map[int]int
}

// New checks the options of a policy.
func New(name, scope string, options map[string]string, nodes []int, distances map[int]map[int]int) (*Policy, error) {
	p := &Policy{Name: name, Scope: scope, Distances: distances}
	if name == None {
		return p, nil // whatever its options are
	}
	most := defaultMaxNodes
	for _, key := range slices.Sorted(maps.Keys(options)) {
		value := options[key]
		var err error
		switch key {
		case "prefer-closest-numa-nodes":
			if p.Closest, err = strconv.ParseBool(value); err != nil {
				return nil, fmt.Errorf("bad value for option %q: %w", key, err)
			}
		case "max-allowable-numa-nodes":
			if most, err = strconv.Atoi(value); err != nil {
				return nil, fmt.Errorf("unable to convert policy option to integer %q: %w", key, err)
			}
			if most < defaultMaxNodes {
				return nil, fmt.Errorf("the minimum value of %q should not be less than %v", key, defaultMaxNodes)
			}
		default:
			return nil, fmt.Errorf("unknown Topology Manager Policy option: %q", key)
		}
	}
	if len(nodes) > min(most, 16) {
		return nil, fmt.Errorf("unsupported on machines with more than %v NUMA Nodes", min(most, 16))
	}
	for _, id := range nodes {
		if id < 0 || id > 63 {
			return nil, fmt.Errorf("NUMA node %d is not supported", id)
		}
	}
	p.All = NodesOf(nodes...)
	return p, nil
}

// merged is the intersection of a hint of each resource.
type merged struct {
	nodes, first Nodes
	preferred    bool
}

// Merge finds the best nodes for all resources, and says whether the policy takes a
// container with them.
func (p *Policy) Merge(resources []Hints) (best Hint, admit bool) {
	if p.Name == None {
		return Hint{}, true
	}
	all := p.filter(resources)
	// Hints are merged resource by resource, equal ones together: their combinations
	// would be without bounds.
	states := []merged{{nodes: p.All, preferred: true}}
	for _, hints := range all {
		seen := map[merged]bool{}
		var next []merged
		for _, s := range states {
			for _, h := range hints {
				n := s
				n.preferred = n.preferred && h.Preferred
				if h.Nodes != 0 {
					n.nodes &= h.Nodes
					if n.first == 0 {
						n.first = h.Nodes
					}
					n.preferred = n.preferred && h.Nodes == n.first
				}
				if !seen[n] {
					seen[n] = true
					next = append(next, n)
				}
			}
		}
		states = next
	}
	enough, found := p.needed(all), false
	for _, s := range states {
		h := Hint{s.nodes, s.preferred}
		if h.Nodes != 0 && (!found || p.better(h, best, enough)) {
			best, found = h, true
		}
	}
	if !found {
		best = Hint{p.All, false}
	}
	if p.Name == SingleNode && best.Nodes == p.All {
		best.Nodes = 0
	}
	return best, p.Name == BestEffort || best.Preferred
}

// filter writes out what nil and empty hints mean, and leaves out what a policy does not
// want.
func (p *Policy) filter(resources []Hints) (all []Hints) {
	for _, hints := range resources {
		switch {
		case hints == nil:
			hints = Hints{{0, true}}
		case len(hints) == 0:
			hints = Hints{{0, false}}
		}
		if p.Name == SingleNode {
			hints = slices.DeleteFunc(slices.Clone(hints), func(h Hint) bool { return !h.Preferred || h.Nodes.Count() > 1 })
		}
		all = append(all, hints)
	}
	return all
}

// needed is how many nodes the resource needs at least that needs most.
func (p *Policy) needed(all []Hints) (most int) {
	for _, hints := range all {
		least := 0
		for _, h := range hints {
			if n := h.Nodes.Count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		most = max(most, least)
	}
	return most
}

// better says whether a hint is better than the best so far. Of two that are not
// preferred, the better one has nearly as many nodes as are needed, not more.
func (p *Policy) better(h, best Hint, enough int) bool {
	if h.Preferred != best.Preferred {
		return h.Preferred
	}
	n, have := h.Nodes.Count(), best.Nodes.Count()
	switch {
	case h.Preferred, have > enough:
		return p.fitter(h.Nodes, best.Nodes)
	case have == enough:
		return n == enough && p.fitter(h.Nodes, best.Nodes)
	case n > enough:
		return false
	case n != have:
		return n > have
	}
	return p.fitter(h.Nodes, best.Nodes)
}

func (p *Policy) fitter(a, b Nodes) bool {
	if p.Closest && p.Name != SingleNode && a.Count() == b.Count() {
		if x, y := p.distance(a), p.distance(b); x != y {
			return x < y
		}
	}
	return a.narrower(b)
}

// distance is the mean distance between nodes.
func (p *Policy) distance(n Nodes) float64 {
	ids := n.IDs()
	sum, count := 0, 0
	for _, a := range ids {
		for _, b := range ids {
			sum += p.Distances[a][b]
			count++
		}
	}
	if count == 0 {
		return 0
	}
	return float64(sum) / float64(count)
}

// Sets are all sets of some nodes, smaller ones first.
func Sets(all Nodes) (sets []Nodes) {
	for n := all; n != 0; n = (n - 1) & all {
		sets = append(sets, n)
	}
	slices.SortFunc(sets, func(a, b Nodes) int {
		if a.narrower(b) {
			return -1
		}
		return 1
	})
	return sets
}
