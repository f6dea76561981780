// Package fairness is API priority and fairness: it gives every request a
// priority level, and a seat in it or a place in a queue. It reads FlowSchemas
// and PriorityLevelConfigurations in the cache, and writes the FlowSchemas'
// condition Dangling.
package fairness

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

// A Dispatcher decides which requests are served now. It is safe for concurrent use.
type Dispatcher struct {
	cache                       *watchcache.Cache
	flowSchemas, priorityLevels *watchcache.Resource
	total                       int
	timeout                     time.Duration
	seed                        maphash.Seed

	places memo

	making sync.Mutex
	plan   atomic.Pointer[plan]

	mu    sync.Mutex // guards what follows, and all that levels hold
	seats seats

	tallies tallies
}

// New gives out total seats by what is in cache. Nobody waits for one longer
// than timeout.
func New(cache *watchcache.Cache, total int, timeout time.Duration) *Dispatcher {
	return &Dispatcher{
		cache:          cache,
		flowSchemas:    cache.Resource(flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")),
		priorityLevels: cache.Resource(flowcontrolv1.SchemeGroupVersion.WithResource("prioritylevelconfigurations")),
		total:          total,
		timeout:        timeout,
		seed:           maphash.MakeSeed(),
	}
}

// A Class is what a request belongs to.
type Class struct {
	// SchemaUID and LevelUID are header values.
	SchemaUID, LevelUID []string
	// Query is the request's, which says how long a list may be.
	Query string
	// Waited is how long Enter took to find a seat.
	Waited time.Duration

	width  width
	schema *schema
	who    user.Info
	info   *request.Info
}

// Classify finds the FlowSchema of a request: the first that matches.
func (d *Dispatcher) Classify(who user.Info, info *request.Info) Class {
	p := d.current()
	s := p.last
	for _, candidate := range p.schemas {
		if candidate.matches(who, info) {
			s = candidate
			break
		}
	}
	return Class{SchemaUID: s.uid, LevelUID: s.level.uid, schema: s, who: who, info: info}
}

// Enter waits for a seat. It is false when there is none to be had: then the
// request must be refused. Leave gives the seat back.
func (d *Dispatcher) Enter(ctx context.Context, c *Class) (seated bool) {
	if c.schema.level.exempt {
		c.width.seats = 1
		c.schema.tally.recordDispatch()
		return true
	}
	c.width = d.width(c.schema.level, c.info, c.Query)
	d.mu.Lock()
	if c.schema.level.gone {
		d.mu.Unlock()
		query := c.Query
		*c = d.Classify(c.who, c.info)
		c.Query = query
		return d.Enter(ctx, c)
	}
	l := c.schema.level
	t := c.schema.tally
	if d.seats.take(l, c.width.seats) {
		t.seats += c.width.seats
		d.mu.Unlock()
		t.recordDispatch()
		return true
	}
	w := l.queue(d.flow(c), c.width.seats, t)
	queues := l.queuing != nil
	d.mu.Unlock()
	switch {
	case w == nil && queues:
		t.rejected[queueFull].Add(1)
		return false
	case w == nil:
		t.rejected[concurrencyLimit].Add(1)
		return false
	}
	t.queued.Add(1)
	t.queuedSeats.Add(int64(c.width.seats))
	began := time.Now()
	defer func() {
		t.queued.Add(-1)
		t.queuedSeats.Add(-int64(c.width.seats))
		c.Waited += time.Since(began)
		d.tallies.recordWait(t, seated, c.Waited)
		if seated {
			t.recordDispatch()
		} else {
			t.rejected[timeOut].Add(1)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	select {
	case <-w.seated:
		return true
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-w.seated: // at the same moment: it has a seat that nobody will use
		d.release(t, l, c.width.seats)
	default:
		l.remove(w)
	}
	return false
}

// Leave gives back the seats that Enter gave, those of a write that many watch a
// little later.
func (d *Dispatcher) Leave(c *Class) {
	t, l, w := c.schema.tally, c.schema.level, c.width
	t.executing.Add(-1)
	switch {
	case l.exempt:
	case w.after > 0:
		run.AfterFunc("priority and fairness: give seats back", w.after, func() { d.leave(t, l, w.seats) })
	default:
		d.leave(t, l, w.seats)
	}
}

func (d *Dispatcher) leave(t *tally, l *level, seats int) {
	d.mu.Lock()
	d.release(t, l, seats)
	d.mu.Unlock()
}

func (d *Dispatcher) release(t *tally, l *level, seats int) {
	t.seats -= seats
	d.seats.release(l, seats)
	d.seats.dispatch()
}

// flow is a hash of what the request's queue is chosen by.
func (d *Dispatcher) flow(c *Class) uint64 {
	var h maphash.Hash
	h.SetSeed(d.seed)
	_, _ = h.WriteString(c.schema.name)
	_ = h.WriteByte(0)
	switch c.schema.by {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		_, _ = h.WriteString(c.who.GetName())
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		_, _ = h.WriteString(c.info.Namespace)
	}
	return h.Sum64()
}
