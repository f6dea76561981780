package horizontalpodautoscaler

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/cache"
)

const (
	// maxSets bounds the labels of pods of one namespace that are remembered, with how many
	// autoscalers they belong to, and setLife how long they are after they were looked at.
	maxSets = 10_000
	setLife = 2 * time.Minute
	// maxNamed bounds the autoscalers that are named of those that a pod belongs to.
	maxNamed = 10
)

// selectors are those of the autoscalers' targets. They find pods that several autoscalers
// count, in each namespace apart: what a tenant has in its own holds up nobody else.
type selectors struct {
	mu     sync.Mutex
	spaces map[string]*space
}

func newSelectors() *selectors { return &selectors{spaces: map[string]*space{}} }

// A space is the selectors of one namespace. They are not compared each with each: one is
// filed under a label that it requires. Those that require no certain label would be
// compared with all pods, so how many autoscalers a set of labels belongs to is remembered,
// and kept true when a selector changes.
type space struct {
	mu     sync.Mutex
	over   bool // it is no longer the namespace's
	filed  map[string]filed
	labels map[label]map[string]labels.Selector
	seed   maphash.Seed
	sets   map[uint64]*labelSet
	swept  time.Time
}

// filed is an autoscaler's selector and the label that it is found by.
type filed struct {
	selector labels.Selector
	text     string
	under    label
}

// A label; without a key it stands for selectors that require no certain one.
type label struct{ key, value string }

// A labelSet is labels that pods have.
type labelSet struct {
	labels labels.Set
	in     int // so many autoscalers they belong to
	looked time.Time
}

func newSpace() *space {
	return &space{filed: map[string]filed{}, labels: map[label]map[string]labels.Selector{}, seed: maphash.MakeSeed(), sets: map[uint64]*labelSet{}}
}

// space is that of a namespace, locked; nil if there is none and none is made.
func (s *selectors) space(namespace string, make bool) *space {
	for {
		s.mu.Lock()
		n := s.spaces[namespace]
		if n == nil && make {
			n = newSpace()
			s.spaces[namespace] = n
		}
		s.mu.Unlock()
		if n == nil {
			return nil
		}
		if n.mu.Lock(); !n.over {
			return n
		}
		n.mu.Unlock()
	}
}

// put files an autoscaler's selector, in place of the one it had.
func (s *selectors) put(autoscaler cache.ObjectName, selector labels.Selector) {
	n := s.space(autoscaler.Namespace, true)
	defer n.mu.Unlock()
	text := selector.String()
	if have, ok := n.filed[autoscaler.Name]; ok && have.text == text {
		return
	}
	n.remove(autoscaler.Name)
	f := filed{selector, text, n.choose(selector)}
	n.filed[autoscaler.Name] = f
	if n.labels[f.under] == nil {
		n.labels[f.under] = map[string]labels.Selector{}
	}
	n.labels[f.under][autoscaler.Name] = selector
	n.count(selector, 1)
}

// choose is the required label that the fewest others are filed under.
func (n *space) choose(selector labels.Selector) (best label) {
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		if op := r.Operator(); op != selection.Equals && op != selection.DoubleEquals && op != selection.In {
			continue
		}
		values := r.ValuesUnsorted()
		if len(values) != 1 {
			continue
		}
		if l := (label{r.Key(), values[0]}); best.key == "" || len(n.labels[l]) < len(n.labels[best]) {
			best = l
		}
	}
	return best
}

func (s *selectors) delete(autoscaler cache.ObjectName) {
	n := s.space(autoscaler.Namespace, false)
	if n == nil {
		return
	}
	defer n.mu.Unlock()
	if n.remove(autoscaler.Name); len(n.filed) == 0 {
		n.over = true
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.spaces, autoscaler.Namespace)
	}
}

func (n *space) remove(autoscaler string) {
	f, ok := n.filed[autoscaler]
	if !ok {
		return
	}
	delete(n.filed, autoscaler)
	if delete(n.labels[f.under], autoscaler); len(n.labels[f.under]) == 0 {
		delete(n.labels, f.under)
	}
	n.count(f.selector, -1)
}

// count is what a selector that comes or goes changes of the sets that are remembered.
func (n *space) count(selector labels.Selector, by int) {
	for _, s := range n.sets {
		if selector.Matches(s.labels) {
			s.in += by
		}
	}
}

// selecting are the autoscalers that any of the namespace's pods belongs to together with
// others, by name, maxNamed at most; none if each pod belongs to one.
func (s *selectors) selecting(namespace string, pods []*corev1.Pod) []cache.ObjectName {
	n := s.space(namespace, false)
	if n == nil {
		return nil
	}
	defer n.mu.Unlock()
	now := time.Now()
	n.sweep(now)
	found := map[string]bool{}
	for _, pod := range pods {
		if n.in(pod.Labels, now) < 2 {
			continue
		}
		n.each(pod.Labels, func(autoscaler string) bool {
			found[autoscaler] = true
			return len(found) < maxNamed
		})
		if len(found) >= maxNamed {
			break
		}
	}
	names := make([]cache.ObjectName, 0, len(found))
	for name := range found {
		names = append(names, cache.ObjectName{Namespace: namespace, Name: name})
	}
	slices.SortFunc(names, func(a, b cache.ObjectName) int { return cmp.Compare(a.Name, b.Name) })
	return names
}

// each calls f with the autoscalers that labels belong to, until it returns false.
func (n *space) each(of labels.Set, f func(autoscaler string) bool) {
	look := func(l label) bool {
		for name, selector := range n.labels[l] {
			if selector.Matches(of) && !f(name) {
				return false
			}
		}
		return true
	}
	if !look(label{}) {
		return
	}
	for k, v := range of {
		if !look(label{k, v}) {
			return
		}
	}
}

// in is how many autoscalers labels belong to.
func (n *space) in(of labels.Set, now time.Time) int {
	var sum uint64
	for k, v := range of { // in any order
		sum += maphash.Comparable(n.seed, label{k, v})
	}
	have := n.sets[sum]
	if have != nil && maps.Equal(have.labels, of) {
		have.looked = now
		return have.in
	}
	count := 0
	n.each(of, func(string) bool { count++; return true })
	if have == nil && len(n.sets) < maxSets {
		n.sets[sum] = &labelSet{of, count, now}
	}
	return count
}

// sweep forgets sets that no pod has any more.
func (n *space) sweep(now time.Time) {
	if now.Sub(n.swept) < setLife/2 {
		return
	}
	n.swept = now
	maps.DeleteFunc(n.sets, func(_ uint64, s *labelSet) bool { return now.Sub(s.looked) > setLife })
}
