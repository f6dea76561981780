package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
)

func queuePod(c *framework.Cluster, name string, priority int32) *framework.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Priority: &priority}}
	p.Name, p.Namespace, p.UID = name, "default", types.UID(name)
	return c.NewPod(p)
}

func TestQueueOrder(t *testing.T) {
	c := framework.NewCluster()
	q := newQueue(plugins.PrioritySort{}.Less)
	now := time.Unix(0, 0)
	for i, p := range []*framework.Pod{queuePod(c, "first", 0), queuePod(c, "second", 0), queuePod(c, "important", 9), queuePod(c, "last", -1)} {
		q.add(p, now.Add(time.Duration(i)), "")
	}
	q.add(queuePod(c, "gated", 99), now, "SchedulingGates")
	var got []string
	for e, _ := q.pop(now); e != nil; e, _ = q.pop(now) {
		got = append(got, e.Pod.Pod.Name)
	}
	if want := []string{"important", "first", "second", "last"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestQueueFairness: while something happens all the time, old pods that fit
// nowhere must not be tried again and again before a newer one of their priority.
func TestQueueFairness(t *testing.T) {
	c := framework.NewCluster()
	q := newQueue(plugins.PrioritySort{}.Less)
	now := time.Unix(0, 0)
	for i := range 3 {
		q.add(queuePod(c, fmt.Sprint("old-", i), 0), now.Add(time.Duration(i)), "")
	}
	q.add(queuePod(c, "new", 0), now.Add(time.Second), "")
	var got []string
	for range 4 {
		e, _ := q.pop(now)
		got = append(got, e.Pod.Pod.Name)
		now = now.Add(2 * mostBackoff)
		q.refused(e, nil, now)
		now = now.Add(2 * mostBackoff)
		q.happened(&framework.Event{Action: framework.NodeAdded}, func(string) func(*framework.Event, *framework.Pod) bool { return nil }, now)
	}
	if want := []string{"old-0", "old-1", "old-2", "new"}; !slices.Equal(got, want) {
		t.Errorf("tried %v, want %v", got, want)
	}
}

func TestQueueBackoff(t *testing.T) {
	c := framework.NewCluster()
	q := newQueue(plugins.PrioritySort{}.Less)
	now := time.Unix(0, 0)
	q.add(queuePod(c, "a", 0), now, "")
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		e, _ := q.pop(now)
		if e == nil {
			t.Fatal("nothing to try at", now)
		}
		q.errored(e, now)
		e, wake := q.pop(now)
		if e != nil || wake.Sub(now) != want*time.Second {
			t.Fatalf("got %v, wake after %v, want %v", e, wake.Sub(now), want*time.Second)
		}
		now = wake
	}
}

func TestQueueWaits(t *testing.T) {
	c := framework.NewCluster()
	q := newQueue(plugins.PrioritySort{}.Less)
	now := time.Unix(0, 0)
	q.add(queuePod(c, "a", 0), now, "")
	e, _ := q.pop(now)
	q.refused(e, []string{"NodeResourcesFit", "TaintToleration"}, now)
	if got, wake := q.pop(now); got != nil || wake.Sub(now) != longestWait {
		t.Fatalf("a waiting pod is tried: %v, %v", got, wake)
	}
	asked := map[string]int{}
	answer := false
	hint := func(name string) func(*framework.Event, *framework.Pod) bool {
		return func(*framework.Event, *framework.Pod) bool { asked[name]++; return answer }
	}
	ev := &framework.Event{Action: framework.NodeAdded}
	if q.happened(ev, hint, now) {
		t.Error("woken by what does not help")
	}
	if fmt.Sprint(asked) != "map[NodeResourcesFit:1 TaintToleration:1]" {
		t.Error("asked", asked)
	}
	answer = true
	if !q.happened(ev, hint, now) {
		t.Error("not woken by what helps")
	}
	// It is still in backoff, but there is nothing else to do.
	if got, _ := q.pop(now); got != e {
		t.Fatalf("got %v", got)
	}
	q.refused(e, nil, now)
	if got, _ := q.pop(now.Add(longestWait)); got != e {
		t.Error("not tried again after the longest wait")
	}
	q.remove(e)
	if len(q.pods)+len(q.ready.list)+len(q.backoff.list)+len(q.waits.list) != 0 {
		t.Error("something is left of a removed pod")
	}
}
