package metrics

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func at(seconds int64, cpu uint64) point {
	return point{start: 1e9, at: seconds * 1e9, cpu: cpu, memory: 7}
}

func TestUsage(t *testing.T) {
	restarted := point{start: 31e9, at: 35e9, cpu: 1, memory: 7}
	young := point{start: 30e9, at: 42e9, cpu: 6e9, memory: 7}
	for name, c := range map[string]struct {
		points []point
		cpu    uint64
		window time.Duration
		ok     bool
	}{
		"one":               {points: []point{at(20, 5)}},
		"two":               {[]point{at(20, 1e9), at(30, 6e9)}, 5e8, 10 * time.Second, true},
		"three":             {[]point{at(20, 1e9), at(30, 6e9), at(40, 6e9)}, 0, 10 * time.Second, true},
		"the same again":    {[]point{at(20, 1e9), at(30, 6e9), at(30, 6e9)}, 5e8, 10 * time.Second, true},
		"time goes back":    {points: []point{at(20, 1e9), at(30, 6e9), at(10, 5e9)}},
		"counter goes back": {points: []point{at(20, 6e9), at(30, 5e9)}},
		"and on":            {[]point{at(20, 6e9), at(30, 5e9), at(40, 10e9)}, 5e8, 10 * time.Second, true},
		"restarted":         {points: []point{at(20, 6e9), at(30, 7e9), restarted}},
		"young":             {[]point{young}, 5e8, 12 * time.Second, true},
		"impossibly fast":   {points: []point{at(20, 1), at(30, 1<<62)}},
	} {
		var s two
		for _, p := range c.points {
			s = follow(p, s)
		}
		u, ok := s.usage()
		if ok != c.ok || u.cpu != c.cpu || u.window != c.window || ok && u.memory != 7 {
			t.Errorf("%s: %+v %v, want %d over %v, %v", name, u, ok, c.cpu, c.window, c.ok)
		}
	}
}

func podNamed(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "n", Name: name}
}

// batchOf is what a node with so many pods of one container says.
func batchOf(pods int, seconds int64) *batch {
	b := &batch{node: at(seconds, uint64(seconds)*1e9), pods: map[types.NamespacedName]map[string]point{}}
	for i := range pods {
		b.pods[podNamed(fmt.Sprint("pod-", i))] = map[string]point{"c": at(seconds, uint64(seconds)*1e8)}
	}
	return b
}

// TestStore: a pod is told of once it has been measured twice, by its own node
// only, and not for ever.
func TestStore(t *testing.T) {
	s := newStore()
	base := time.Unix(1700000000, 0)
	_, none := s.podUsage("a", podNamed("pod-0"), base)
	s.put("a", batchOf(1, 20), base)
	_, once := s.podUsage("a", podNamed("pod-0"), base)
	s.put("a", batchOf(1, 35), base.Add(period))
	both, twice := s.podUsage("a", podNamed("pod-0"), base.Add(period))
	if none || once || !twice || len(both) != 1 || both[0].cpu != 1e8 || both[0].window != period {
		t.Errorf("told %v, %v, %v: %+v", none, once, twice, both)
	}
	if _, ok := s.podUsage("b", podNamed("pod-0"), base.Add(period)); ok {
		t.Error("a node says what another's pod uses")
	}
	if u, ok := s.nodeUsage("a", base.Add(period)); !ok || u.cpu != 1e9 {
		t.Errorf("node %+v %v", u, ok)
	}
	if _, ok := s.nodeUsage("a", base.Add(period+stale+time.Second)); ok {
		t.Error("what a node said long ago is told")
	}
	s.keep(func(string) bool { return false }, base)
	if _, ok := s.podUsage("a", podNamed("pod-0"), base.Add(period)); ok {
		t.Error("a node that is gone is told of")
	}
}

// TestManyContainers: the measurements of a pod's containers are found by name, however many
// a node says that there are.
func TestManyContainers(t *testing.T) {
	s := newStore()
	base := time.Unix(1700000000, 0)
	say := func(i int, containers ...string) {
		b := &batch{pods: map[types.NamespacedName]map[string]point{podNamed("p"): {}}}
		for n, name := range containers {
			b.pods[podNamed("p")][name] = at(int64(20+15*i), uint64(1+i*(n+1))*1e9)
		}
		s.put("a", b, base.Add(time.Duration(i)*period))
	}
	say(0, "b", "a", "d", "c")
	say(1, "b", "a", "d", "e")
	list := s.nodes["a"].pods[podNamed("p")]
	var got []string
	for _, c := range list {
		got = append(got, fmt.Sprint(c.name, " ", c.last.cpu/1e9, " ", c.prev.cpu/1e9))
	}
	if want := "[a 3 1 b 2 1 d 4 1 e 5 0]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}

	// That not all of a list is looked at shows in one that is not in order.
	last := container{"z", two{last: at(20, 1)}}
	if measured([]container{{name: "a"}, last}, "z") != last.two || measured([]container{last, {name: "a"}, {name: "b"}}, "z") != (two{}) {
		t.Error("containers are compared one after the other")
	}
}

func TestSeries(t *testing.T) {
	s := started(1000)
	s.put(1000, 1, 10)
	s.put(1003, 2, 20)
	if p := s.points(1003); len(p) != 2 || p[0].Cores != 1 || p[1].Memory != 20 || p[1].Time.Unix() != 1003*15 {
		t.Errorf("points %v", p)
	}
	for n := int64(1004); n < 1004+2*slots; n++ {
		s.put(n, float32(n), 0)
	}
	p := s.points(1003 + 2*slots)
	if len(p) != int(slots) || p[0].Cores != float32(1004+slots) {
		t.Errorf("an hour is %d points from %v on", len(p), p[0])
	}
	if p := s.points(1003 + 3*slots); len(p) != 0 {
		t.Errorf("%d points are older than an hour", len(p))
	}
}

// TestHistoryMemory: an hour of 1,000 pods takes no more than 8 MB.
func TestHistoryMemory(t *testing.T) {
	const pods, limit = 1000, 8 << 20
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := newStore()
	base := time.Unix(1700000000, 0)
	for i := range slots {
		for node := range 10 { // 100 pods each
			b := &batch{pods: map[types.NamespacedName]map[string]point{}}
			for pod := range pods / 10 {
				b.pods[podNamed(fmt.Sprint("pod-", node, "-", pod))] = map[string]point{"c": at(20+15*i, uint64(1+i)*1e9)}
			}
			s.put(fmt.Sprint("node-", node), b, base.Add(time.Duration(i)*period))
		}
	}
	used := int64(heap()) - int64(before)
	t.Logf("%d bytes for an hour of %d pods, with their last measurements", used, pods)
	if s.history.count() != pods || len(s.history.pods["node-0"][podNamed("pod-0-0")].points(number(base)+slots-1)) != int(slots)-1 {
		t.Errorf("%d pods are remembered", s.history.count())
	}
	if used > limit {
		t.Errorf("an hour of %d pods takes %d bytes, more than %d", pods, used, limit)
	}
	runtime.KeepAlive(s)
}

// TestHistoryOfNames: a pod of the same name before it is not its history, nor what
// another node says.
func TestHistoryOfNames(t *testing.T) {
	s := newStore()
	base := time.Unix(1700000010, 0)
	for i := range int64(5) {
		s.put("a", batchOf(1, 20+15*i), base.Add(time.Duration(i)*period))
	}
	pod, now := podNamed("pod-0"), base.Add(4*period)
	if n := len(s.podHistory("a", pod, base.Add(-time.Hour), now)); n != 4 {
		t.Errorf("%d periods", n)
	}
	if n := len(s.podHistory("a", pod, base.Add(3*period), now)); n != 2 {
		t.Errorf("%d periods since it was made", n)
	}
	if p := s.podHistory("b", pod, base, now); p != nil {
		t.Errorf("of another node: %v", p)
	}
}

// TestHistoryBounds: a node that tells of more and more pods takes no more.
func TestHistoryBounds(t *testing.T) {
	s := newStore()
	base := time.Unix(1700000000, 0)
	s.put("a", batchOf(maxPodsOfNode+500, 20), base)
	s.put("a", batchOf(maxPodsOfNode+500, 35), base.Add(period))
	if got := s.history.count(); got > maxPodsOfNode {
		t.Errorf("%d pods of one node are remembered", got)
	}
	s.keep(func(string) bool { return true }, base.Add(2*time.Hour))
	if len(s.history.pods) > 0 || len(s.history.nodes) > 0 {
		t.Error("what is older than an hour is kept")
	}
}

// TestSchedule: a node has its turn at once, soon after, and then once in each
// period; one that hangs keeps others from nothing.
func TestSchedule(t *testing.T) {
	s := &schedule{queue: map[string]*turn{}}
	now := time.Unix(1700000000, 0)
	due, _ := s.update([]string{"a", "b", "c"}, now, 2)
	if len(due) != 2 {
		t.Fatalf("%v are due", due)
	}
	s.done("a", now, nil)
	if due, next := s.update([]string{"a", "b", "c"}, now, 1); len(due) != 1 || due[0] != "c" || !next.Equal(now.Add(soon)) {
		t.Errorf("%v are due, the next at %v", due, next)
	}
	now = now.Add(soon)
	if due, _ := s.update([]string{"a", "b", "c"}, now, 1); len(due) != 1 || due[0] != "a" {
		t.Errorf("%v are due", due)
	}
	if !s.done("a", now, fmt.Errorf("hangs")) || s.queue["a"].due.Sub(now) < period/2 {
		t.Errorf("after a failure: %+v", s.queue["a"])
	}
	for _, c := range []struct {
		after time.Duration
		err   error
		want  bool
	}{{period, errors.New("hangs"), false}, {logAgain, errors.New("hangs"), true}, {logAgain + period, nil, true}, {logAgain + 2*period, nil, false}} {
		if got := s.done("a", now.Add(c.after), c.err); got != c.want {
			t.Errorf("after %v, %v: logged %v", c.after, c.err, got)
		}
	}
	if s.update([]string{"a"}, now, 1); len(s.queue) != 3 { // b and c are busy
		t.Errorf("%d nodes", len(s.queue))
	}
	s.done("b", now, nil)
	s.done("c", now, nil)
	if s.update([]string{"a"}, now, 1); len(s.queue) != 1 {
		t.Errorf("%d nodes", len(s.queue))
	}
}
