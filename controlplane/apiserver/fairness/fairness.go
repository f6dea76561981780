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
)

// A Dispatcher decides who is served now. It is safe for use by many.
type Dispatcher struct {
	flowSchemas, priorityLevels *watchcache.Resource
	total                       int
	patience                    time.Duration
	seed                        maphash.Seed

	making sync.Mutex
	plan   atomic.Pointer[plan]

	mu    sync.Mutex // guards what follows, and all that levels hold
	seats seats

	tallies tallies
}

// New gives out total seats by what is in cache. Nobody waits for one longer
// than patience.
func New(cache *watchcache.Cache, total int, patience time.Duration) *Dispatcher {
	return &Dispatcher{
		flowSchemas:    cache.Resource(flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")),
		priorityLevels: cache.Resource(flowcontrolv1.SchemeGroupVersion.WithResource("prioritylevelconfigurations")),
		total:          total,
		patience:       patience,
		seed:           maphash.MakeSeed(),
	}
}

// A Class is what a request belongs to.
type Class struct {
	// SchemaUID and LevelUID are header values.
	SchemaUID, LevelUID []string
	// Waited is how long Enter took to find a seat.
	Waited time.Duration

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
		c.schema.tally.seated()
		return true
	}
	d.mu.Lock()
	if c.schema.level.gone {
		d.mu.Unlock()
		*c = d.Classify(c.who, c.info)
		return d.Enter(ctx, c)
	}
	l := c.schema.level
	t := c.schema.tally
	if d.seats.take(l) {
		d.mu.Unlock()
		t.seated()
		return true
	}
	w := l.queue(d.flow(c))
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
	began := time.Now()
	defer func() {
		t.queued.Add(-1)
		c.Waited += time.Since(began)
		d.tallies.waited(t, seated, c.Waited)
		if seated {
			t.seated()
		} else {
			t.rejected[timeOut].Add(1)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, d.patience)
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
		d.release(l)
	default:
		l.remove(w)
	}
	return false
}

// Leave gives back the seat that Enter gave.
func (d *Dispatcher) Leave(c *Class) {
	c.schema.tally.executing.Add(-1)
	if c.schema.level.exempt {
		return
	}
	d.mu.Lock()
	d.release(c.schema.level)
	d.mu.Unlock()
}

func (d *Dispatcher) release(l *level) {
	d.seats.give(l)
	d.seats.serve()
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
