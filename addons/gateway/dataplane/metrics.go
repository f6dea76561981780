package dataplane

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/addons/gateway/proxy"
	"knarr/addons/gateway/route"
	"knarr/addons/gateway/tracing"
	"knarr/internal/run"
)

// bounds are those of the histogram of durations, in seconds.
var bounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

var (
	requestsDesc = prometheus.NewDesc("knarr_gateway_requests_total", "Requests served, by route and class of status.", []string{"route", "code"}, nil)
	durationDesc = prometheus.NewDesc("knarr_gateway_request_duration_seconds", "Time from a request's head to the end of its answer, by route.", []string{"route"}, nil)
	flightDesc   = prometheus.NewDesc("knarr_gateway_requests_in_flight", "Requests that are being served, by route.", []string{"route"}, nil)
	receivedDesc = prometheus.NewDesc("knarr_gateway_request_bytes_total", "Bytes of requests' bodies, by route.", []string{"route"}, nil)
	sentDesc     = prometheus.NewDesc("knarr_gateway_response_bytes_total", "Bytes of answers' bodies, by route.", []string{"route"}, nil)
	routesDesc   = prometheus.NewDesc("knarr_gateway_routes", "Routes that are served.", nil, nil)
	lostDesc     = prometheus.NewDesc("knarr_gateway_access_log_lost_total", "Lines that the access log has lost.", nil, nil)
	spansDesc    = prometheus.NewDesc("knarr_gateway_spans_total", "Spans of sampled requests, by whether the collector took them.", []string{"result"}, nil)
)

// maxRouteLabels bounds the routes that have labels of their own; the requests of others
// are counted together, as of the route otherRoutes.
const (
	maxRouteLabels = 1000
	otherRoutes    = "other"
)

// stats counts the requests of each route. Those of no route are counted together, so that
// clients cannot make labels.
type stats struct {
	routes      sync.Map // name to *routeStats
	labels      atomic.Int64
	none, other routeStats
	served      atomic.Int64 // routes
	// of are the routes of each listener, listeners how often a route's name is among them.
	of        map[string][]*route.Route
	listeners map[string]int
	log       *accessLog
	tracer    *tracing.Tracer
}

// A routeStats is what is counted of one route.
type routeStats struct {
	codes          [6]atomic.Uint64 // by the first digit
	buckets        [16]atomic.Uint64
	nanos          atomic.Uint64
	received, sent atomic.Uint64
	flying         atomic.Int64
}

func newStats() *stats { return &stats{listeners: map[string]int{}} }

func (s *stats) label(name string) *routeStats {
	if r, ok := s.routes.Load(name); ok {
		return r.(*routeStats)
	}
	if s.labels.Load() >= maxRouteLabels {
		return &s.other
	}
	r, had := s.routes.LoadOrStore(name, &routeStats{})
	if !had {
		s.labels.Add(1)
	}
	return r.(*routeStats)
}

// matched counts a request whose route is known, and returns where the rest is counted.
func (s *stats) matched(route string) any {
	r := s.label(route)
	r.flying.Add(1)
	return r
}

func (s *stats) add(r *proxy.Record) {
	to, matched := r.Counted.(*routeStats)
	if !matched {
		to = &s.none
	}
	to.codes[min(max(r.Status/100, 0), 5)].Add(1)
	to.buckets[bucket(r.Duration)].Add(1)
	to.nanos.Add(uint64(max(r.Duration, 0)))
	to.received.Add(uint64(r.Received))
	to.sent.Add(uint64(r.Sent))
	if matched {
		to.flying.Add(-1)
	}
}

func bucket(d time.Duration) int {
	s := d.Seconds()
	for i, b := range bounds {
		if s <= b {
			return i
		}
	}
	return len(bounds)
}

// keep forgets the routes that a Config no longer has.
func (s *stats) keep(c *route.Config) {
	now := make(map[string][]*route.Route, len(c.Listeners))
	for i := range c.Listeners {
		l := &c.Listeners[i]
		now[l.Name] = l.Routes
		s.count(s.of[l.Name], l.Routes)
	}
	for name, before := range s.of {
		if _, there := now[name]; !there {
			s.count(before, nil)
		}
	}
	s.of = now
	for name := range s.routes.Range { // also those that the last requests have brought back
		if s.listeners[name.(string)] == 0 {
			s.routes.Delete(name)
			s.labels.Add(-1)
		}
	}
	s.served.Store(int64(len(s.listeners)))
}

// count notes which routes one of the listeners has in place of others.
func (s *stats) count(before, now []*route.Route) {
	from, beforeTo, nowTo := route.Changed(before, now)
	for _, r := range now[from:nowTo] {
		s.listeners[r.Name]++
	}
	for _, r := range before[from:beforeTo] {
		if s.listeners[r.Name]--; s.listeners[r.Name] == 0 {
			delete(s.listeners, r.Name)
		}
	}
}

// Describe is of prometheus.Collector.
func (s *stats) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, durationDesc, flightDesc, receivedDesc, sentDesc, routesDesc, lostDesc, spansDesc} {
		to <- d
	}
}

// Collect is of prometheus.Collector.
func (s *stats) Collect(to chan<- prometheus.Metric) {
	defer run.Recover("gateway: metrics")
	s.none.collect("", to)
	s.other.collect(otherRoutes, to)
	for name, r := range s.routes.Range {
		r.(*routeStats).collect(name.(string), to)
	}
	to <- prometheus.MustNewConstMetric(routesDesc, prometheus.GaugeValue, float64(s.served.Load()))
	if s.log != nil {
		to <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(s.log.lost.Load()))
	}
	if s.tracer != nil {
		sent, dropped := s.tracer.Counts()
		to <- prometheus.MustNewConstMetric(spansDesc, prometheus.CounterValue, float64(sent), "sent")
		to <- prometheus.MustNewConstMetric(spansDesc, prometheus.CounterValue, float64(dropped), "dropped")
	}
}

func (r *routeStats) collect(name string, to chan<- prometheus.Metric) {
	total := uint64(0)
	for i := range r.codes {
		n := r.codes[i].Load()
		if n == 0 {
			continue
		}
		code := string('0'+rune(i)) + "xx"
		to <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), name, code)
	}
	buckets := make(map[float64]uint64, len(bounds))
	for i := range r.buckets {
		total += r.buckets[i].Load()
		if i < len(bounds) {
			buckets[bounds[i]] = total
		}
	}
	if flying := r.flying.Load(); total > 0 || flying > 0 {
		to <- prometheus.MustNewConstMetric(flightDesc, prometheus.GaugeValue, float64(flying), name)
	}
	if total == 0 {
		return
	}
	seconds := math.Round(float64(r.nanos.Load())/1e3) / 1e6
	to <- prometheus.MustNewConstHistogram(durationDesc, total, seconds, buckets, name)
	to <- prometheus.MustNewConstMetric(receivedDesc, prometheus.CounterValue, float64(r.received.Load()), name)
	to <- prometheus.MustNewConstMetric(sentDesc, prometheus.CounterValue, float64(r.sent.Load()), name)
}
