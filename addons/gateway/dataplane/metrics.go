package dataplane

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/addons/gateway/proxy"
	"knarr/addons/gateway/route"
)

// bounds are those of the histogram of durations, in seconds.
var bounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

var (
	requestsDesc = prometheus.NewDesc("knarr_gateway_requests_total", "Requests served, by route and class of status.", []string{"route", "code"}, nil)
	durationDesc = prometheus.NewDesc("knarr_gateway_request_duration_seconds", "Time from a request's head to the end of its answer, by route.", []string{"route"}, nil)
	bytesDesc    = prometheus.NewDesc("knarr_gateway_response_bytes_total", "Bytes of answers' bodies, by route.", []string{"route"}, nil)
)

// stats counts the requests of each route. Those of no route are counted together, so that
// clients cannot make labels.
type stats struct {
	routes sync.Map // name to *routeStats
	none   routeStats
}

// A routeStats is what is counted of one route.
type routeStats struct {
	codes   [6]atomic.Uint64 // by the first digit
	buckets [16]atomic.Uint64
	nanos   atomic.Uint64
	bytes   atomic.Uint64
}

func newStats() *stats { return &stats{} }

func (s *stats) of(name string) *routeStats {
	if name == "" {
		return &s.none
	}
	if r, ok := s.routes.Load(name); ok {
		return r.(*routeStats)
	}
	r, _ := s.routes.LoadOrStore(name, &routeStats{})
	return r.(*routeStats)
}

func (s *stats) add(r *proxy.Record) {
	to := s.of(r.Route)
	to.codes[min(max(r.Status/100, 0), 5)].Add(1)
	to.buckets[bucket(r.Duration)].Add(1)
	to.nanos.Add(uint64(max(r.Duration, 0)))
	to.bytes.Add(uint64(r.Sent))
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
	have := map[string]bool{}
	for i := range c.Listeners {
		for j := range c.Listeners[i].Routes {
			have[c.Listeners[i].Routes[j].Name] = true
		}
	}
	for name := range s.routes.Range {
		if !have[name.(string)] {
			s.routes.Delete(name)
		}
	}
}

// Describe is of prometheus.Collector.
func (s *stats) Describe(to chan<- *prometheus.Desc) {
	to <- requestsDesc
	to <- durationDesc
	to <- bytesDesc
}

// Collect is of prometheus.Collector.
func (s *stats) Collect(to chan<- prometheus.Metric) {
	s.none.collect("", to)
	for name, r := range s.routes.Range {
		r.(*routeStats).collect(name.(string), to)
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
	if total == 0 {
		return
	}
	seconds := math.Round(float64(r.nanos.Load())/1e3) / 1e6
	to <- prometheus.MustNewConstHistogram(durationDesc, total, seconds, buckets, name)
	to <- prometheus.MustNewConstMetric(bytesDesc, prometheus.CounterValue, float64(r.bytes.Load()), name)
}
