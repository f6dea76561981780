package networkpolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// What policies may be in this node's kernel together. A new connection passes at
// most the rules of its pods' namespaces, and each transaction looks sets up by
// going through them all.
const (
	maxNamespace = 10_000 // chains, rules and sets of one namespace's policies
	maxSets      = 20_000 // of all
)

// size is how many chains, rules and sets a policy is.
func (p *policy) size() (n int) {
	for _, d := range directions {
		if p.isolates[d] {
			n += 1 + len(p.chains[d].Rules) + len(p.sets[d])
		}
	}
	return n
}

// fits says why there is no room for a policy.
func (ix *index) fits(p *policy) error {
	if ix.namespace(p.name.Namespace).size+p.size() > ix.bounds.namespace {
		return fmt.Errorf("there is no room beside the other policies of its namespace: %d chains, rules and sets are the most", ix.bounds.namespace)
	}
	if len(ix.sets)+len(p.sets[Ingress])+len(p.sets[Egress]) > ix.bounds.sets {
		return fmt.Errorf("there is no room beside the other policies of this node: %d sets are the most", ix.bounds.sets)
	}
	return nil
}

// refuse notes that there is no room for a policy. It has no chain, so that the
// pods that it selects are isolated and it allows them nothing.
func (ix *index) refuse(p *policy, err error) {
	p.full = err
	ix.full[p] = true
	ix.refused = append(ix.refused, p)
}

// refit puts policies in force for which there is room now.
func (ix *index) refit() {
	if !ix.freed {
		return
	}
	ix.freed = false
	waiting := slices.SortedFunc(maps.Keys(ix.full), func(a, b *policy) int { return strings.Compare(a.name.String(), b.name.String()) })
	for _, p := range waiting {
		if !ix.full[p] || ix.fits(p) != nil {
			continue
		}
		p.full = nil
		delete(ix.full, p)
		ix.enforce(p)
		for _, q := range ix.namespaces[p.name.Namespace].pods {
			if slices.Contains(q.policies, p) {
				ix.rebind(q)
			}
		}
	}
}
