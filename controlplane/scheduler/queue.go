package scheduler

import (
	"container/heap"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
)

// How long a pod that was tried in vain is left alone, and how long it waits
// at most for something to happen.
const (
	firstBackoff = time.Second
	mostBackoff  = 10 * time.Second
	longestWait  = 5 * time.Minute
)

type place uint8

const (
	inFlight   place = iota // being tried, or being bound
	active                  // to be tried now
	backingOff              // to be tried soon
	waiting                 // for something to happen
	gated                   // not to be tried
)

// places are what upstream calls them.
var places = [...]string{inFlight: "", active: "active", backingOff: "backoff", waiting: "unschedulable", gated: "gated"}

// What moves pods between places, beside what happens in the cluster, in upstream's words.
const (
	podAdded        = "UnschedulablePodAdd"
	podUpdated      = "UnschedulablePodUpdate"
	podUngated      = "UnschedulablePodUpdatePodSchedulingGatesEliminated"
	attemptFailed   = "ScheduleAttemptFailure"
	backoffComplete = "BackoffComplete"
	idle            = "PopFromBackoffQ"
	waitedLongest   = "UnschedulableTimeout"
	activated       = "ForceActivate"
)

// A queued is a pod that has no node.
type queued struct {
	*framework.Pod
	where     place
	index     int
	since     int64     // when it came, or was last tried
	first     time.Time // when it was first to be tried
	began     time.Time // the last attempt
	attempts  int
	sampled   bool      // whether calls of plugins are timed in it
	flushed   bool      // it is tried because it waited for the longest time
	failed    bool      // the last attempt ended in an error
	notBefore time.Time // end of the backoff
	until     time.Time // end of the wait
	refusedBy []string
	nominated string      // the node where it made room
	victims   []types.UID // those it has had deleted
}

// A queue is the pods that have no node, in the order they are to be tried. It
// is pure: it is told the time.
type queue struct {
	pods    map[types.UID]*queued
	ready   podHeap
	backoff podHeap
	// waits are the waiting pods, the longest waiting first.
	waits podHeap
	// byPlugin are the waiting pods by who refused them; "" are those that any
	// event may help.
	byPlugin map[string]map[*queued]struct{}
	// entered is told of each pod that comes to a place, and why; nil: nobody is.
	entered func(where place, event string)
}

func newQueue(less func(a, b *framework.Pod, aSince, bSince int64) bool) *queue {
	return &queue{
		pods:     map[types.UID]*queued{},
		ready:    podHeap{less: func(a, b *queued) bool { return less(a.Pod, b.Pod, a.since, b.since) }},
		backoff:  podHeap{less: func(a, b *queued) bool { return a.notBefore.Before(b.notBefore) }},
		waits:    podHeap{less: func(a, b *queued) bool { return a.until.Before(b.until) }},
		byPlugin: map[string]map[*queued]struct{}{},
	}
}

// add takes in a new pod, which a plugin may hold back.
func (q *queue) add(p *framework.Pod, now time.Time, heldBy string) *queued {
	e := &queued{Pod: p, since: now.UnixNano()}
	q.pods[p.UID] = e
	if heldBy != "" {
		q.hold(e, heldBy, podAdded)
	} else {
		q.activate(e, podAdded, now)
	}
	return e
}

func (q *queue) enter(e *queued, where place, event string) {
	e.where = where
	if q.entered != nil {
		q.entered(where, event)
	}
}

func (q *queue) activate(e *queued, event string, now time.Time) {
	q.take(e)
	if e.first.IsZero() {
		e.first = now
	}
	q.enter(e, active, event)
	heap.Push(&q.ready, e)
}

// hold keeps a pod from being tried.
func (q *queue) hold(e *queued, plugin, event string) {
	q.take(e)
	e.refusedBy = []string{plugin}
	q.enter(e, gated, event)
}

// reorder finds the place among the pods to be tried of one that changed.
func (q *queue) reorder(e *queued) { heap.Fix(&q.ready, e.index) }

// take leaves a pod nowhere, as if it were being tried.
func (q *queue) take(e *queued) {
	switch e.where {
	case active:
		heap.Remove(&q.ready, e.index)
	case backingOff:
		heap.Remove(&q.backoff, e.index)
	case waiting:
		heap.Remove(&q.waits, e.index)
		for _, name := range e.refusers() {
			delete(q.byPlugin[name], e)
		}
	}
	e.where = inFlight
}

// remove forgets a pod.
func (q *queue) remove(e *queued) {
	q.take(e)
	delete(q.pods, e.UID)
}

// pop gives the pod to try now, or nil and when there may be one (zero: only
// after an event). Pods in backoff after a refusal need not wait it out while
// there is nothing else to do.
func (q *queue) pop(now time.Time) (e *queued, wake time.Time) {
	for len(q.backoff.list) > 0 && !q.backoff.list[0].notBefore.After(now) {
		q.activate(q.backoff.list[0], backoffComplete, now)
	}
	for len(q.waits.list) > 0 && !q.waits.list[0].until.After(now) {
		q.waits.list[0].flushed = true
		q.activate(q.waits.list[0], waitedLongest, now)
	}
	if len(q.ready.list) == 0 {
		for _, b := range q.backoff.list {
			if !b.failed && (e == nil || q.ready.less(b, e)) {
				e = b
			}
		}
		if e != nil {
			q.activate(e, idle, now)
		}
	}
	if len(q.ready.list) > 0 {
		e = q.ready.list[0]
		q.take(e)
		e.attempts++
		e.refusedBy = nil
		return e, time.Time{}
	}
	if len(q.backoff.list) > 0 {
		wake = q.backoff.list[0].notBefore
	}
	if len(q.waits.list) > 0 && (wake.IsZero() || q.waits.list[0].until.Before(wake)) {
		wake = q.waits.list[0].until
	}
	return nil, wake
}

// tried puts the pod behind those of its priority that have not been tried since,
// and begins its backoff: old pods that fit nowhere must not be tried before every
// newer one whenever something happens.
func (e *queued) tried(now time.Time) {
	e.flushed = false
	e.since = now.UnixNano()
	d := firstBackoff
	for i := 1; i < e.attempts && d < mostBackoff; i++ {
		d *= 2
	}
	e.notBefore = now.Add(min(d, mostBackoff))
}

// refused puts a tried pod to wait until an event that one of the plugins
// thinks may help; without plugins any event.
func (q *queue) refused(e *queued, plugins []string, now time.Time) {
	e.failed = false
	e.tried(now)
	e.refusedBy, e.until = plugins, now.Add(longestWait)
	q.enter(e, waiting, attemptFailed)
	heap.Push(&q.waits, e)
	for _, name := range e.refusers() {
		if q.byPlugin[name] == nil {
			q.byPlugin[name] = map[*queued]struct{}{}
		}
		q.byPlugin[name][e] = struct{}{}
	}
}

var anybody = []string{""}

func (e *queued) refusers() []string {
	if len(e.refusedBy) == 0 {
		return anybody
	}
	return e.refusedBy
}

// errored puts a tried pod into backoff.
func (q *queue) errored(e *queued, now time.Time) {
	e.failed = true
	e.tried(now)
	q.enter(e, backingOff, attemptFailed)
	heap.Push(&q.backoff, e)
}

// wake lets a waiting pod be tried, once its backoff is over.
func (q *queue) wake(e *queued, event string, now time.Time) {
	if e.where != waiting && e.where != gated {
		return
	}
	if !e.notBefore.After(now) {
		q.activate(e, event, now)
		return
	}
	q.take(e)
	q.enter(e, backingOff, event)
	heap.Push(&q.backoff, e)
}

// happened wakes the pods that an event may help, as the plugins that refused
// them see it. It reports whether there were any.
func (q *queue) happened(ev *framework.Event, hint func(plugin string) func(*framework.Event, *framework.Pod) bool, now time.Time) bool {
	if len(q.waits.list) == 0 {
		return false
	}
	var woken []*queued
	for name, set := range q.byPlugin {
		if len(set) == 0 {
			continue
		}
		h := hint(name)
		for e := range set {
			if h == nil || h(ev, e.Pod) {
				woken = append(woken, e)
			}
		}
	}
	slices.SortFunc(woken, func(a, b *queued) int { return int(a.since - b.since) })
	for _, e := range woken {
		q.wake(e, ev.Label(), now)
	}
	return len(woken) > 0
}

// A podHeap is a heap of pods, each knowing its index.
type podHeap struct {
	list []*queued
	less func(a, b *queued) bool
}

func (h *podHeap) Len() int           { return len(h.list) }
func (h *podHeap) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }
func (h *podHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}
func (h *podHeap) Push(x any) {
	e := x.(*queued)
	e.index = len(h.list)
	h.list = append(h.list, e)
}
func (h *podHeap) Pop() any {
	last := len(h.list) - 1
	e := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	return e
}
