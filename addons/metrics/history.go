package metrics

import (
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// What is remembered: an hour in periods of 15 s, of so many pods of one node
// and of all. A pod's hour is 1,920 bytes.
const (
	slots          = int64(time.Hour / period)
	maxPodsOfNode  = 1000
	maxPodsHistory = 20_000
)

// A Point is what was used in one period.
type Point struct {
	Time   time.Time // when the period began
	Cores  float32
	Memory float32 // working set, bytes
}

// A series is a ring of the last hour: the slot of a period is its number modulo
// slots. A period without a measurement is NaN.
type series struct {
	newest      int64 // the number of the newest period
	cpu, memory [slots]float32
}

var missing = float32(math.NaN())

// put sets a period's figures; those that were passed over are missing.
func (s *series) put(number int64, cores, bytes float32) {
	for n := max(s.newest+1, number-slots+1); n < number; n++ {
		s.cpu[n%slots], s.memory[n%slots] = missing, missing
	}
	s.newest = max(s.newest, number)
	s.cpu[number%slots], s.memory[number%slots] = cores, bytes
}

// points are the periods up to now that were measured, oldest first.
func (s *series) points(now int64) (out []Point) {
	for n := now - slots + 1; n <= s.newest; n++ {
		if c := s.cpu[n%slots]; c == c {
			out = append(out, Point{time.Unix(n*int64(period/time.Second), 0), c, s.memory[n%slots]})
		}
	}
	return out
}

// A history is the series of nodes, and of pods by the node that tells of them: what
// a node says of another's pods is never looked up. The store's lock guards it.
type history struct {
	nodes map[string]*series
	pods  map[string]map[types.NamespacedName]*series
}

func newHistory() history {
	return history{map[string]*series{}, map[string]map[types.NamespacedName]*series{}}
}

// count is how many pods are remembered.
func (h history) count() (n int) {
	for _, pods := range h.pods {
		n += len(pods)
	}
	return n
}

func number(t time.Time) int64 { return t.UnixNano() / int64(period) }

// started is a series in which nothing has been measured before a period.
func started(number int64) *series {
	s := &series{newest: number - slots}
	return s
}

// add takes in what a node's last two measurements say.
func (h history) add(node string, from *nodeSamples, now time.Time) {
	n := number(now)
	if u, ok := from.node.usage(); ok {
		s := h.nodes[node]
		if s == nil {
			s = started(n)
			h.nodes[node] = s
		}
		s.put(n, float32(u.cpu)/1e9, float32(u.memory))
	}
	of := h.pods[node]
	if of == nil {
		of = map[types.NamespacedName]*series{}
		h.pods[node] = of
	}
	left := min(maxPodsOfNode-len(of), maxPodsHistory-h.count())
	for pod, containers := range from.pods {
		list, ok := usages(containers)
		s := of[pod]
		if !ok || s == nil && left <= 0 {
			continue
		}
		if s == nil {
			s = started(n)
			of[pod] = s
			left--
		}
		var cpu, memory float32
		for _, c := range list {
			cpu, memory = cpu+float32(c.cpu)/1e9, memory+float32(c.memory)
		}
		s.put(n, cpu, memory)
	}
}

// prune forgets what has not been measured for an hour.
func (h history) prune(now time.Time) {
	oldest := number(now) - slots
	for node, s := range h.nodes {
		if s.newest <= oldest {
			delete(h.nodes, node)
		}
	}
	for node, of := range h.pods {
		maps.DeleteFunc(of, func(_ types.NamespacedName, s *series) bool { return s.newest <= oldest })
		if len(of) == 0 {
			delete(h.pods, node)
		}
	}
}

// nodeHistory is what a node used in the last hour, oldest first.
func (s *store) nodeHistory(node string, now time.Time) []Point {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if of := s.history.nodes[node]; of != nil {
		return of.points(number(now))
	}
	return nil
}

// podHistory is what a node's pod used in the last hour, oldest first, but nothing
// from before it was made: that was another of its name.
func (s *store) podHistory(node string, pod types.NamespacedName, made, now time.Time) []Point {
	s.mu.RLock()
	defer s.mu.RUnlock()
	of := s.history.pods[node][pod]
	if of == nil {
		return nil
	}
	return slices.DeleteFunc(of.points(number(now)), func(p Point) bool { return p.Time.Before(made.Truncate(period)) })
}
