package kubeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/client-go/tools/cache"
)

// Bounds of what users may write in a few objects and would otherwise be gigabytes
// of rules on every node. A pair is a port at an address or an endpoint. The ports of
// slices count too, which have to be gone through.
const (
	// maxPairs is of one Service.
	maxPairs = 100_000
	// freePairs of each Service do not count together with others: as many Services
	// as an API server holds are no harm to a node.
	freePairs = 16
	// maxNamespacePairs are of a namespace: 5,000 Services of three ports in both
	// families with 3,000 pods are within.
	maxNamespacePairs = 100_000
	// maxNodePairs are of all: 10,000 such Services with 150,000 pods are within.
	maxNodePairs = 1_000_000
)

// A boundError is why a Service is too large or has no room. It stays so until a
// Service changes, and is not tried again before.
type boundError string

func (e boundError) Error() string { return string(e) }

func isBound(err error) bool { return errors.As(err, new(boundError)) }

// A budget decides which Services get rules where those of a namespace, or all, are
// more than their bound: as many as fit, the oldest first. Like plan it is pure:
// the outcome depends on the Services alone, so it is the same on all nodes.
type budget struct {
	bounds     struct{ namespace, node int }
	namespaces map[string]*namespaceBudget
	changed    map[string]bool // namespaces
	all        queue
	granted    int // to all namespaces
	refused    int // for the bound of the node
}

// A namespaceBudget is that of the Services of one namespace that have more pairs
// than are free.
type namespaceBudget struct {
	demands         map[cache.ObjectName]*demand
	all             queue
	wanted, granted int
	refused         int // for the bound of the namespace
}

// A demand is what one Service has more than is free.
type demand struct {
	name    cache.ObjectName
	created int64
	uid     string
	pairs   int
	// Which bound leaves no room for it.
	overNamespace, overNode bool
}

// A queue is of demands by age. It is put in order when that is asked for, which costs little
// where most of it is.
type queue struct {
	demands []*demand
	live    int // without those that are gone
}

func (q *queue) add(d *demand) {
	q.live++
	if q.demands = append(q.demands, d); len(q.demands) > 2*q.live+16 {
		q.clean()
	}
}

func (q *queue) clean() {
	q.demands = slices.DeleteFunc(q.demands, func(d *demand) bool { return d.pairs == 0 })
}

func (q *queue) byAge() []*demand {
	q.clean()
	slices.SortFunc(q.demands, func(a, b *demand) int {
		if a.created != b.created { // mostly; nothing else is looked at then
			return cmp.Compare(a.created, b.created)
		}
		return cmp.Or(cmp.Compare(a.uid, b.uid), cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
	})
	return q.demands
}

func newBudget() *budget {
	b := &budget{namespaces: map[string]*namespaceBudget{}, changed: map[string]bool{}}
	b.bounds.namespace, b.bounds.node = maxNamespacePairs, maxNodePairs
	return b
}

// set takes over how many pairs a Service has; none: it is gone, or gets no rules.
func (b *budget) set(name cache.ObjectName, created int64, uid string, pairs int) {
	pairs = max(0, pairs-freePairs)
	n := b.namespaces[name.Namespace]
	if n == nil {
		if pairs == 0 {
			return
		}
		n = &namespaceBudget{demands: map[cache.ObjectName]*demand{}}
		b.namespaces[name.Namespace] = n
	}
	d := n.demands[name]
	had := 0
	if d != nil {
		had = d.pairs
	}
	switch {
	case d == nil && pairs == 0, d != nil && d.created == created && d.uid == uid && d.pairs == pairs:
		return
	case d == nil:
		d = &demand{name: name, pairs: pairs}
		n.demands[name] = d
		n.all.add(d)
		b.all.add(d)
	case pairs == 0:
		delete(n.demands, name)
		n.all.live--
		b.all.live--
	}
	n.wanted += pairs - had
	d.created, d.uid, d.pairs = created, uid, pairs
	b.changed[name.Namespace] = true
}

// settle decides anew after changes, and adds to turned the Services that get rules
// now and did not, or the other way round. Where nothing is over a bound, it costs
// nothing.
func (b *budget) settle(turned map[cache.ObjectName]Rules) {
	if len(b.changed) == 0 {
		return
	}
	for name := range b.changed {
		n := b.namespaces[name]
		b.granted -= n.granted
		n.settle(b.bounds.namespace, turned)
		b.granted += n.granted
		if len(n.demands) == 0 {
			delete(b.namespaces, name)
		}
	}
	clear(b.changed)
	if b.granted <= b.bounds.node && b.refused == 0 {
		return
	}
	_, b.refused = fit(b.all.byAge(), b.bounds.node, turned, func(d *demand) *bool {
		if d.overNamespace {
			d.overNode = false
			return nil
		}
		return &d.overNode
	})
}

func (n *namespaceBudget) settle(bound int, turned map[cache.ObjectName]Rules) {
	if n.wanted <= bound && n.refused == 0 {
		n.granted = n.wanted
		return
	}
	n.granted, n.refused = fit(n.all.byAge(), bound, turned, func(d *demand) *bool { return &d.overNamespace })
}

// fit notes for each demand, unless there is no need to, whether it is over a bound together
// with those before it that are not.
func fit(demands []*demand, bound int, turned map[cache.ObjectName]Rules, over func(*demand) *bool) (granted, refused int) {
	for _, d := range demands {
		was, is := over(d), granted+d.pairs > bound
		switch {
		case was == nil:
			continue
		case is:
			refused++
		default:
			granted += d.pairs
		}
		if *was != is {
			*was = is
			turned[d.name] = Rules{}
		}
	}
	return granted, refused
}

// refusal says why there is no room for a Service.
func (b *budget) refusal(name cache.ObjectName) error {
	n := b.namespaces[name.Namespace]
	if n == nil || n.demands[name] == nil {
		return nil
	}
	const text = "there is no room beside older Services of %s: %d ports times addresses and endpoints are the most, without %d of each Service"
	switch d := n.demands[name]; {
	case d.overNamespace:
		return boundError(fmt.Sprintf(text, "its namespace", b.bounds.namespace, freePairs))
	case d.overNode:
		return boundError(fmt.Sprintf(text, "this node", b.bounds.node, freePairs))
	}
	return nil
}
