package metrics

import (
	"math"
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

// A history is the series of nodes and pods. The store's lock guards it.
type history struct {
	nodes map[string]*series
	pods  map[types.NamespacedName]*series
}

func newHistory() history {
	return history{map[string]*series{}, map[types.NamespacedName]*series{}}
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
	taken := 0
	for pod, containers := range from.pods {
		list, ok := usages(containers)
		if taken++; !ok || taken > maxPodsOfNode {
			continue
		}
		s := h.pods[pod]
		if s == nil && len(h.pods) >= maxPodsHistory {
			continue
		}
		if s == nil {
			s = started(n)
			h.pods[pod] = s
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
	for pod, s := range h.pods {
		if s.newest <= oldest {
			delete(h.pods, pod)
		}
	}
}

// NodeHistory is what a node used in the last hour, oldest first.
func (s *Server) NodeHistory(node string) []Point {
	s.store.mu.RLock()
	defer s.store.mu.RUnlock()
	if of := s.store.history.nodes[node]; of != nil {
		return of.points(number(time.Now()))
	}
	return nil
}

// PodHistory is what a pod used in the last hour, oldest first.
func (s *Server) PodHistory(namespace, name string) []Point {
	s.store.mu.RLock()
	defer s.store.mu.RUnlock()
	if of := s.store.history.pods[types.NamespacedName{Namespace: namespace, Name: name}]; of != nil {
		return of.points(number(time.Now()))
	}
	return nil
}
