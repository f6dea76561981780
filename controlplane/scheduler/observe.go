package scheduler

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/controlplane/scheduler/framework"
)

// A point is an extension point at which plugins are asked.
type point uint8

const (
	preEnqueue point = iota
	preFilter
	filterPoint
	postFilter
	preScore
	scorePoint
	normalizeScore
	reserve
	preBind
	bindPoint
	points // their number
)

var pointNames = [points]string{"PreEnqueue", "PreFilter", "Filter", "PostFilter", "PreScore", "Score", "ScoreExtensionNormalize", "Reserve", "PreBind", "Bind"}

// sampledPercent is in how many attempts of a hundred calls of plugins are timed.
const sampledPercent = 10

const (
	noNode  = -1 // no calls are timed
	anyNode = -2 // those about the node that is asked about next
)

// A cycle is what it took to decide about a pod. A look at the clock is dear beside
// most plugins: extension points are timed as a whole, and single calls only in some
// cycles, and there about a single node.
type cycle struct {
	began, at time.Time // the beginning, and the end of the last extension point
	ran       []stage
	node      int // the slot of the node about which calls are timed
	calls     []call
}

// A stage is an extension point that ran.
type stage struct {
	point  point
	status framework.Code
	took   time.Duration
}

// maxCalls bounds the calls that are timed in one cycle.
const maxCalls = 64

// A call is one of a plugin.
type call struct {
	plugin int // in the table
	stage
}

func (c *cycle) start() {
	c.began = time.Now()
	c.at, c.ran, c.node, c.calls = c.began, c.ran[:0], noNode, c.calls[:0]
	if rand.IntN(100) < sampledPercent {
		c.node = anyNode
	}
}

// end ends an extension point, which began where the last one ended.
func (c *cycle) end(p point, status framework.Code) {
	now := time.Now()
	c.ran, c.at = append(c.ran, stage{p, status, now.Sub(c.at)}), now
}

// choose takes the node about which calls are timed, if there is to be one.
func (c *cycle) choose(slot int) {
	if c.node == anyNode {
		c.node = slot
	}
}

func (c *cycle) sampled() bool { return c.node != noNode }

// call notes one that began at a time.
func (c *cycle) call(plugin int, p point, status framework.Code, began time.Time) {
	if len(c.calls) < maxCalls {
		c.calls = append(c.calls, call{plugin, stage{p, status, time.Since(began)}})
	}
}

// An observer has the metrics of a term at hand, so that to observe is neither to
// look for labels nor to allocate. It belongs to who has the term's lock.
type observer struct {
	core     *core
	profiles map[string]*profile
	plugins  [][points][framework.Codes]prometheus.Observer
	incoming map[incoming]prometheus.Counter
	events   map[string]prometheus.Observer
}

type incoming struct {
	queue place
	event string
}

// A profile is what the pods of one schedulerName count.
type profile struct {
	name        string
	points      [points][framework.Codes]prometheus.Observer
	evaluations [points][]prometheus.Counter // by place among filters or scorers
}

func newObserver(c *core) *observer {
	return &observer{core: c, profiles: map[string]*profile{}, incoming: map[incoming]prometheus.Counter{}, events: map[string]prometheus.Observer{},
		plugins: make([][points][framework.Codes]prometheus.Observer, len(c.names))}
}

func (o *observer) profile(name string) *profile {
	p := o.profiles[name]
	if p == nil {
		p = &profile{name: name}
		for _, at := range []point{preFilter, filterPoint} {
			p.evaluations[at] = make([]prometheus.Counter, len(o.core.filters))
		}
		for _, at := range []point{preScore, scorePoint} {
			p.evaluations[at] = make([]prometheus.Counter, len(o.core.scorers))
		}
		o.profiles[name] = p
	}
	return p
}

func (p *profile) observe(at point, status framework.Code, took time.Duration) {
	o := &p.points[at][status]
	if *o == nil {
		*o = pointTook.WithLabelValues(pointNames[at], status.String(), p.name)
	}
	(*o).Observe(took.Seconds())
}

func (p *profile) evaluated(at point, i int, plugin string, n *uint32) {
	if *n == 0 {
		return
	}
	c := &p.evaluations[at][i]
	if *c == nil {
		*c = evaluations.WithLabelValues(plugin, pointNames[at], p.name)
	}
	(*c).Add(float64(*n))
	*n = 0
}

// entered counts a pod that came into a queue.
func (o *observer) entered(where place, event string) {
	key := incoming{where, event}
	if where == gated {
		key.queue = waiting // as upstream, which keeps them there
	}
	c := o.incoming[key]
	if c == nil {
		c = incomingPods.WithLabelValues(places[key.queue], event)
		o.incoming[key] = c
	}
	c.Inc()
}

// handled times an event that came from the API server.
func (o *observer) handled(event string, began time.Time) {
	h := o.events[event]
	if h == nil {
		h = eventTook.WithLabelValues(event)
		o.events[event] = h
	}
	h.Observe(time.Since(began).Seconds())
}

// decided tells what the core's cycle took, the first part of it to find a node.
func (o *observer) decided(schedulerName string, search time.Duration) {
	algorithmTook.Observe(search.Seconds())
	c, p := o.core, o.profile(schedulerName)
	for _, s := range c.cycle.ran {
		p.observe(s.point, s.status, s.took)
	}
	for i := range c.filters {
		f := &c.filters[i]
		p.evaluated(preFilter, i, c.names[f.plugin], &f.prepared)
		p.evaluated(filterPoint, i, c.names[f.plugin], &f.asked)
	}
	for i := range c.scorers {
		sc := &c.scorers[i]
		p.evaluated(preScore, i, sc.name, &sc.prepared)
		p.evaluated(scorePoint, i, sc.name, &sc.asked)
	}
	for _, k := range c.cycle.calls {
		h := &o.plugins[k.plugin][k.point][k.status]
		if *h == nil {
			*h = pluginTook.WithLabelValues(c.names[k.plugin], pointNames[k.point], k.status.String())
		}
		(*h).Observe(k.took.Seconds())
	}
}

// attached times the wait of a placed pod for its volumes.
func (o *observer) attached(a *attaching, err error) {
	status := framework.Success
	if err != nil {
		status = framework.Error
		volumeErrors.WithLabelValues("bind").Inc()
	}
	o.profile(a.pod.Spec.SchedulerName).observe(preBind, status, time.Since(a.began))
}

// The results of an attempt.
const (
	scheduled     = "scheduled"
	unschedulable = "unschedulable"
	failed        = "error"
)

// attempted counts an attempt to give a pod a node.
func attempted(schedulerName, result string, took time.Duration) {
	scheduleAttempts.WithLabelValues(result, schedulerName).Inc()
	attemptTook.WithLabelValues(result, schedulerName).Observe(took.Seconds())
}

// bound counts a pod that has its node, after a binding that began at a time.
func bound(q *queued, schedulerName string, began time.Time) {
	now := time.Now()
	boundIn(schedulerName, framework.Success, now.Sub(began), q.sampled)
	attempted(schedulerName, scheduled, now.Sub(q.began))
	attemptsOfPod.Observe(float64(q.attempts))
	attempts := "15+"
	if q.attempts < 15 {
		attempts = strconv.Itoa(q.attempts)
	}
	schedulingSLI.WithLabelValues(attempts).Observe(now.Sub(q.first).Seconds())
	if q.flushed {
		scheduledAfterFlush.Inc()
	}
}

// boundIn times a binding, whatever became of it.
func boundIn(schedulerName string, status framework.Code, took time.Duration, sampled bool) {
	pointTook.WithLabelValues(pointNames[bindPoint], status.String(), schedulerName).Observe(took.Seconds())
	if sampled {
		pluginTook.WithLabelValues("DefaultBinder", pointNames[bindPoint], status.String()).Observe(took.Seconds())
	}
}
