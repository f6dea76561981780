package metrics

import (
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// period is how often each node is asked.
	period = 15 * time.Second
	// stale is the greatest age of a node's samples: it may fail to answer twice.
	stale = 3*period + scrapeTime
	// youngest is how old a container must be for its use since its start to be
	// served: metrics-server's figure.
	youngest = 10 * time.Second
	// maxCores bounds the rate that is believed.
	maxCores = 1 << 20
)

// A usage is what is used at a time, measured over a window before it.
type usage struct {
	cpu    uint64 // nanocores
	memory uint64 // bytes
	at     time.Time
	window time.Duration
}

// two are the last two measurements; prev.at is 0 as long as there is one.
type two struct{ last, prev point }

// A container is a container's measurements.
type container struct {
	name string
	two
}

// A nodeSamples is the newest samples of a node.
type nodeSamples struct {
	scraped time.Time
	node    two
	pods    map[types.NamespacedName][]container
}

// A store keeps the last two measurements of each node and of its containers,
// under the node's name: what a node says of another's pods is never looked up.
type store struct {
	mu      sync.RWMutex
	nodes   map[string]*nodeSamples
	history history
}

func newStore() *store {
	return &store{nodes: map[string]*nodeSamples{}, history: newHistory()}
}

// put stores the samples of a node.
func (s *store) put(node string, b *batch, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.nodes[node]
	if old == nil {
		old = &nodeSamples{}
	}
	next := &nodeSamples{scraped: now, pods: make(map[types.NamespacedName][]container, len(b.pods))}
	if b.node.whole() {
		next.node = follow(b.node, old.node)
	}
	for pod, points := range b.pods {
		list := make([]container, 0, len(points))
		for _, name := range slices.Sorted(maps.Keys(points)) {
			list = append(list, container{name, follow(points[name], measured(old.pods[pod], name))})
		}
		next.pods[pod] = list
	}
	s.nodes[node] = next
	s.history.add(node, next, now)
}

// measured are a container's measurements in a list that is in the order of names, as a
// node says how long it is. Pure.
func measured(list []container, name string) two {
	i, found := slices.BinarySearchFunc(list, name, func(c container, name string) int { return strings.Compare(c.name, name) })
	if !found {
		return two{}
	}
	return list[i].two
}

// follow is the last two measurements after a new one. Pure.
func follow(now point, was two) two {
	age := time.Duration(now.at - now.start)
	if now.start > 0 && age >= youngest && age < period {
		return two{now, point{start: now.start, at: now.start}} // none was used when it started
	}
	if was.last.at == 0 || now.start >= was.last.at { // it is new, or another since
		return two{last: now}
	}
	switch {
	case now.at > was.last.at:
		return two{now, was.last}
	case was.prev.at != 0 && was.prev.at < now.at:
		return two{now, was.prev} // the kubelet said again what it had said
	}
	return two{last: now}
}

// usage is what was used between the two; false when that cannot be computed. Pure.
func (t two) usage() (usage, bool) {
	window := time.Duration(t.last.at - t.prev.at)
	if t.prev.at == 0 || window <= 0 || t.last.start < t.prev.start || t.last.cpu < t.prev.cpu {
		return usage{}, false
	}
	rate := float64(t.last.cpu-t.prev.cpu) / window.Seconds()
	if rate > maxCores*1e9 {
		return usage{}, false
	}
	return usage{uint64(math.Round(rate)), t.last.memory, time.Unix(0, t.last.at), window}, true
}

// keep forgets nodes that are not in the cluster.
func (s *store) keep(is func(node string) bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.nodes, func(node string, _ *nodeSamples) bool { return !is(node) })
	s.history.prune(now)
}

// clear forgets everything.
func (s *store) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.history = map[string]*nodeSamples{}, newHistory()
}

// nodeUsage is what a node uses.
func (s *store) nodeUsage(node string, now time.Time) (usage, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	have := s.nodes[node]
	if have == nil || now.Sub(have.scraped) > stale {
		return usage{}, false
	}
	return have.node.usage()
}

// A containerUsage is what a container uses.
type containerUsage struct {
	name string
	usage
}

// podUsage is what the containers of a node's pod use; false until all of them
// have been measured twice.
func (s *store) podUsage(node string, pod types.NamespacedName, now time.Time) ([]containerUsage, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	have := s.nodes[node]
	if have == nil || now.Sub(have.scraped) > stale {
		return nil, false
	}
	return usages(have.pods[pod])
}

func usages(of []container) (out []containerUsage, ok bool) {
	for _, c := range of {
		if c.prev.at == 0 {
			return nil, false
		}
		if u, ok := c.usage(); ok {
			out = append(out, containerUsage{c.name, u})
		}
	}
	return out, len(out) > 0
}
