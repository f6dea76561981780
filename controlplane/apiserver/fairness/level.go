package fairness

import (
	"slices"
	"sync/atomic"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// A level is a priority level at work. The Dispatcher's lock guards it; only
// uid, name, exempt and widestSeats are read without.
type level struct {
	portion
	uid        []string
	name       string
	exempt     bool
	gone       bool              // of no configuration any more
	executing  int               // seats
	queues     map[int][]*waiter // those that are not empty
	roundRobin []int             // their numbers, the next to be served first
	// widestSeats is the most seats of one request.
	widestSeats atomic.Int64
}

// A waiter is a request in a queue.
type waiter struct {
	flow   uint64
	queue  int
	width  int
	tally  *tally
	seated chan struct{} // closed when it has a seat
}

func newLevel(config *flowcontrolv1.PriorityLevelConfiguration) *level {
	return &level{
		uid:    []string{string(config.UID)},
		name:   config.Name,
		exempt: config.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt,
		queues: map[int][]*waiter{},
	}
}

func (l *level) waiting() bool { return len(l.roundRobin) > 0 }

// configure takes over a new configuration. Those who wait keep waiting: in
// their old queues when there are to be none.
func (l *level) configure(p portion) {
	old, order := l.queues, l.roundRobin
	same := p.queuing == nil || l.queuing != nil && l.queuing.Queues == p.queuing.Queues && l.queuing.HandSize == p.queuing.HandSize
	l.portion = p
	l.widestSeats.Store(int64(p.widest()))
	if same {
		return
	}
	l.queues, l.roundRobin = map[int][]*waiter{}, nil
	for _, q := range order {
		for _, w := range old[q] {
			l.add(w)
		}
	}
}

// add puts a waiter into the shortest queue of its flow's hand.
func (l *level) add(w *waiter) {
	w.queue = l.shortest(w.flow)
	if len(l.queues[w.queue]) == 0 {
		l.roundRobin = append(l.roundRobin, w.queue)
	}
	l.queues[w.queue] = append(l.queues[w.queue], w)
}

func (l *level) shortest(flow uint64) int {
	best := -1
	l.dealer.Deal(flow, func(q int) {
		if best < 0 || len(l.queues[q]) < len(l.queues[best]) {
			best = q
		}
	})
	return best
}

// queue makes a place in a queue, nil when there are none left.
func (l *level) queue(flow uint64, width int, t *tally) *waiter {
	if l.queuing == nil || len(l.queues[l.shortest(flow)]) >= int(l.queuing.QueueLengthLimit) {
		return nil
	}
	w := &waiter{flow: flow, width: width, tally: t, seated: make(chan struct{})}
	l.add(w)
	return w
}

// remove takes a waiter out of its queue.
func (l *level) remove(w *waiter) {
	q := slices.DeleteFunc(l.queues[w.queue], func(x *waiter) bool { return x == w })
	if len(q) > 0 {
		l.queues[w.queue] = q
		return
	}
	delete(l.queues, w.queue)
	l.roundRobin = slices.DeleteFunc(l.roundRobin, func(n int) bool { return n == w.queue })
}

// next is the waiter to be served next.
func (l *level) next() *waiter { return l.queues[l.roundRobin[0]][0] }

// first takes the next waiter out: one of each queue in turn.
func (l *level) first() *waiter {
	n, w := l.roundRobin[0], l.next()
	l.remove(w)
	if l.waiting() && l.roundRobin[0] == n {
		l.roundRobin = append(l.roundRobin[1:], n)
	}
	return w
}
