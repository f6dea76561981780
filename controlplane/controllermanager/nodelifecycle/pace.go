package nodelifecycle

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A tally counts the nodes of each zone, and those of them that are ready. What
// befits one node depends on all the others: looking at all of them for each would
// be quadratic when many are down.
type tally struct {
	pace  Config
	mu    sync.Mutex
	nodes map[string]counted // by name
	zones map[string]*zone
	ready int
}

// A counted is what a node counts as.
type counted struct {
	zone  string
	ready bool
}

type zone struct {
	all, ready int
	last       time.Time // when pods of a node were last made to leave
}

func newTally(pace Config) *tally {
	return &tally{pace: pace, nodes: map[string]counted{}, zones: map[string]*zone{}}
}

// set counts a node as c; nil is a node that is not there.
func (t *tally) set(name string, c *counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was, ok := t.nodes[name]; ok {
		if c != nil && was == *c {
			return
		}
		t.add(was, -1)
		delete(t.nodes, name)
	}
	if c != nil {
		t.nodes[name] = *c
		t.add(*c, 1)
	}
}

func (t *tally) add(c counted, n int) {
	z := t.zones[c.zone]
	if z == nil {
		z = &zone{}
		t.zones[c.zone] = z
	}
	z.all += n
	if c.ready {
		z.ready += n
		t.ready += n
	}
	observeZone(c.zone, z.all, z.ready)
	if z.all == 0 {
		delete(t.zones, c.zone)
	}
}

// leave reports whether the pods of a node that is not ready, whatever the cache
// says of it, are to leave now. leaving says that they were let go before. They
// stay when no node is ready, as then the fault is likely elsewhere.
func (t *tally) leave(name string, leaving bool, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.nodes[name]
	if !ok {
		return false
	}
	z := t.zones[c.zone]
	others, down := t.ready, z.all-z.ready
	if c.ready {
		others, down = others-1, down+1
	}
	if others == 0 {
		return false
	}
	if leaving {
		return true
	}
	rate := t.pace.EvictionRate
	if partial := down > 2 && down < z.all && float32(down)/float32(z.all) >= t.pace.UnhealthyZoneThreshold; partial {
		if z.all <= t.pace.LargeClusterSizeThreshold {
			return false
		}
		rate = t.pace.SecondaryEvictionRate
	}
	if rate <= 0 || !z.last.IsZero() && now.Sub(z.last) < interval(rate) {
		return false
	}
	z.last = now
	return true
}

// recount counts a node as the cache shows it.
func (r *reconciler) recount(name string) {
	obj, ok, err := r.nodes.GetByKey(name)
	if err != nil {
		return
	}
	if !ok {
		r.count.set(name, nil)
		return
	}
	node := obj.(*corev1.Node)
	r.count.set(name, &counted{zoneOf(node), readiness(node) == corev1.ConditionTrue})
}

// mayEvict reports whether the pods of a node that is not ready are to leave now.
func (r *reconciler) mayEvict(node *corev1.Node, ready corev1.ConditionStatus, now time.Time) bool {
	if ready == corev1.ConditionTrue {
		return false
	}
	return r.count.leave(node.Name, slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	}), now)
}

func zoneOf(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}

// interval is the time from one node to the next, at a rate per second: a float32's, whose
// last digits nobody wrote.
func interval(rate float32) time.Duration {
	return time.Duration(float64(time.Second) / float64(rate)).Round(time.Millisecond)
}
