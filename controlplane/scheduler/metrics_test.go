package scheduler

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
)

// absent are families of upstream's that are not here, by prefix, and why.
var absent = []struct{ prefix, why string }{
	{"scheduler_batch_", "pods alike share answers about nodes, and none of them is given up for another's"},
	{"scheduler_dra_", "devices are not allocated"},
	{"scheduler_get_node_hint_", "as batch_"},
	{"scheduler_inflight_events", "no event comes while a pod is decided about: none has to be kept"},
	{"scheduler_permit_wait_", "no plugin has a pod wait for a permit"},
	{"scheduler_preemption_goroutines_", "a victim is deleted as pods are bound; no goroutine belongs to a preemption"},
	{"scheduler_queueing_hint_", "two looks at the clock for every waiting pod at every event"},
	{"scheduler_resourceclaim_", "as dra_"},
	{"scheduler_store_schedule_results_", "as batch_"},
	{"scheduler_volume_binder_cache_", "upstream does not count it any more"},
}

// TestMetricsAreUpstreams: what is told has upstream's stability, types, names, labels
// and buckets; what is not, a reason.
func TestMetricsAreUpstreams(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, c := range Metrics() {
		touch(t, c)
		registry.MustRegister(c)
	}
	leave := running.enter(refusing())
	all, err := registry.Gather()
	leave()
	if err != nil {
		t.Fatal(err)
	}
	here := map[string]string{}
	for _, f := range all {
		here[f.GetName()] = described(f)
	}
	golden, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(golden)) {
		line = strings.TrimSpace(line)
		name := strings.Fields(line)[2]
		missing := slices.ContainsFunc(absent, func(a struct{ prefix, why string }) bool { return strings.HasPrefix(name, a.prefix) })
		switch got, ok := here[name]; {
		case line[0] == '#':
		case missing && ok:
			t.Errorf("%s is here, but there is a reason why not", name)
		case !missing && !ok:
			t.Errorf("%s is not here, and there is no reason why", name)
		case ok && got != line:
			t.Errorf("got  %s\nwant %s", got, line)
		}
		delete(here, name)
	}
	for name := range here {
		t.Errorf("upstream has no %s", name)
	}
}

// touch has a family told, with empty labels.
func touch(t *testing.T, c prometheus.Collector) {
	t.Helper()
	if c == prometheus.Collector(running) {
		return
	}
	all := make(chan *prometheus.Desc, 1)
	c.Describe(all)
	_, list, _ := strings.Cut((<-all).String(), "variableLabels: {")
	empty := make([]string, strings.Count(list, ",")+1)
	switch v := c.(type) {
	case *prometheus.CounterVec:
		v.WithLabelValues(empty...)
		t.Cleanup(func() { v.DeleteLabelValues(empty...) })
	case *prometheus.HistogramVec:
		v.WithLabelValues(empty...)
		t.Cleanup(func() { v.DeleteLabelValues(empty...) })
	}
}

// refusing is a term with a pod that was refused.
func refusing() *term {
	c := framework.NewCluster()
	s := &term{cluster: c, queue: newQueue(plugins.PrioritySort{}.Less), writes: newWrites(1)}
	s.queue.add(queuePod(c, "held", 0), time.Unix(0, 0), "SchedulingGates")
	return s
}

// described is a family as a line of the golden file.
func described(f *dto.MetricFamily) string {
	stability, _, _ := strings.Cut(strings.TrimPrefix(f.GetHelp(), "["), "]")
	m := f.Metric[0]
	labels := []string{}
	for _, l := range m.Label {
		labels = append(labels, l.GetName())
	}
	slices.Sort(labels)
	var bounds []string
	for _, b := range m.GetHistogram().GetBucket() {
		bounds = append(bounds, fmt.Sprint(b.GetUpperBound()))
	}
	by := strings.Join(labels, ",")
	if by == "" {
		by = "-"
	}
	words := []string{strings.ToLower(stability), strings.ToLower(f.GetType().String()), f.GetName(), by, strings.Join(bounds, ",")}
	return strings.TrimSpace(strings.Join(words, " "))
}

// TestCensus: a pod counts where it is, once for each plugin that refused it, and no
// longer once it is tried.
func TestCensus(t *testing.T) {
	c := framework.NewCluster()
	s := &term{cluster: c, queue: newQueue(plugins.PrioritySort{}.Less), writes: newWrites(1)}
	now := time.Unix(0, 0)
	see := func(when string, queues map[string]int, refused map[refusedBy]int) {
		t.Helper()
		n := census{queues: map[string]int{}, refused: map[refusedBy]int{}}
		s.count(&n)
		if !reflect.DeepEqual(n.queues, queues) || !reflect.DeepEqual(n.refused, refused) {
			t.Errorf("%s: %v %v, want %v %v", when, n.queues, n.refused, queues, refused)
		}
	}
	none := map[refusedBy]int{}
	held := s.queue.add(queuePod(c, "held", 0), now, "SchedulingGates")
	s.queue.add(queuePod(c, "a", 0), now, "")
	byGates := refusedBy{"SchedulingGates", ""}
	see("added", map[string]int{"active": 1, "gated": 1}, map[refusedBy]int{byGates: 1})
	s.queue.remove(held)
	a, _ := s.queue.pop(now)
	see("tried", map[string]int{}, none)
	s.queue.refused(a, []string{"NodeResourcesFit", "NodeAffinity", "NodeAffinity"}, now)
	both := map[refusedBy]int{{"NodeResourcesFit", ""}: 1, {"NodeAffinity", ""}: 1}
	see("refused", map[string]int{"unschedulable": 1}, both)
	s.queue.wake(a, activated, now)
	see("woken in its backoff", map[string]int{"backoff": 1}, both)
	if a, _ = s.queue.pop(now.Add(mostBackoff)); a == nil {
		t.Fatal("the backoff did not end")
	}
	see("tried again", map[string]int{}, none)
	s.queue.errored(a, now)
	see("after an error", map[string]int{"backoff": 1}, none)
}

// TestSampling: a cycle that is sampled times calls about one node, and no more of them
// than are bounded; others time none.
func TestSampling(t *testing.T) {
	s := benchCore(100, noSiblings{})
	sampled, o := 0, newObserver(s)
	for i := range 2000 {
		p := s.cluster.NewPod(benchPod(i, "web", nil))
		node, why := s.decide(p)
		if node == nil {
			t.Fatal(why)
		}
		s.cluster.Place(p, node.Name)
		calls := s.cycle.calls
		if !s.cycle.sampled() {
			if len(calls) > 0 {
				t.Fatal("calls are timed in a cycle that is not sampled")
			}
			continue
		}
		sampled++
		seen := map[point]bool{}
		for _, c := range calls {
			seen[c.point] = true
		}
		if len(calls) > maxCalls || !seen[preFilter] || !seen[filterPoint] || !seen[preScore] {
			t.Fatalf("%d calls at %v", len(calls), seen)
		}
		o.decided("default-scheduler", 0)
	}
	if sampled < 100 || sampled > 320 {
		t.Errorf("%d of 2000 cycles are sampled, want a tenth", sampled)
	}
	if s.filters[0].asked > 40*100 {
		t.Errorf("calls were not counted off: %d", s.filters[0].asked)
	}
}
