package dns

import (
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"knarr/internal/run"
	"knarr/internal/version"
)

// metrics are CoreDNS', with its names and labels.
type metrics struct {
	registry *prometheus.Registry

	requests, responses, do             *prometheus.CounterVec
	duration, requestSize, responseSize *prometheus.HistogramVec
	cacheHits                           *prometheus.CounterVec
	cacheRequests, prefetched, stale    prometheus.Counter
	broken, rejects, reloadFails        prometheus.Counter
	proxied                             *prometheus.HistogramVec
	probes                              *prometheus.CounterVec
	programming                         *prometheus.HistogramVec
	mu                                  sync.Mutex
	servers                             map[string]*counters
}

// serverLabel is what CoreDNS calls a server on port 53.
const serverLabel = "dns://:53"

var sizes = []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), servers: map[string]*counters{}}
	counter := func(sub, name, help string, labels ...string) *prometheus.CounterVec {
		return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "coredns", Subsystem: sub, Name: name, Help: help}, labels))
	}
	histogram := func(sub, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return register(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "coredns", Subsystem: sub, Name: name, Help: help, Buckets: buckets}, labels))
	}
	seconds := prometheus.ExponentialBuckets(0.00025, 2, 16)
	m.requests = counter("dns", "requests_total", "Counter of DNS requests made per zone, protocol and family.", "server", "zone", "view", "proto", "family", "type")
	m.responses = counter("dns", "responses_total", "Counter of response status codes.", "server", "zone", "view", "rcode", "plugin")
	m.do = counter("dns", "do_requests_total", "Counter of DNS requests with DO bit set per zone.", "server", "zone", "view")
	m.duration = histogram("dns", "request_duration_seconds", "Histogram of the time (in seconds) each request took per zone.", seconds, "server", "zone", "view")
	m.requestSize = histogram("dns", "request_size_bytes", "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.", sizes, "server", "zone", "view", "proto")
	m.responseSize = histogram("dns", "response_size_bytes", "Size of the returned response in bytes.", sizes, "server", "zone", "view", "proto")
	m.cacheHits = counter("cache", "hits_total", "The count of cache hits.", "server", "type", "zones", "view")
	m.cacheRequests = counter("cache", "requests_total", "The count of cache requests.", "server", "zones", "view").WithLabelValues(serverLabel, ".", "")
	m.prefetched = counter("cache", "prefetch_total", "The number of times the cache has prefetched a cached item.", "server", "zones", "view").WithLabelValues(serverLabel, ".", "")
	m.stale = counter("cache", "served_stale_total", "The number of requests served from stale cache entries.", "server", "zones", "view").WithLabelValues(serverLabel, ".", "")
	m.broken = counter("forward", "healthcheck_broken_total", "Counter of the number of complete failures of the healthchecks.").WithLabelValues()
	m.rejects = counter("forward", "max_concurrent_rejects_total", "Counter of the number of queries rejected because the concurrent queries were at maximum.").WithLabelValues()
	m.proxied = histogram("proxy", "request_duration_seconds", "Histogram of the time each request took.", seconds, "proxy_name", "to", "rcode")
	m.probes = counter("proxy", "healthcheck_failures_total", "Counter of the number of failed healthchecks.", "proxy_name", "to")
	m.reloadFails = counter("reload", "failed_total", "Counter of the number of failed reload attempts.").WithLabelValues()
	m.programming = histogram("kubernetes", "dns_programming_duration_seconds", "Histogram of the time (in seconds) it took to program a dns instance.", prometheus.ExponentialBuckets(0.001, 2, 20), "service_kind")
	info := register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "coredns", Name: "build_info", Help: "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built."}, []string{"version", "revision", "goversion"}))
	info.WithLabelValues("knarr-"+version.Version, "", "").Set(1)
	register(m, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "coredns", Name: "panics_total", Help: "A metrics that counts the number of panics."}, func() float64 {
		return float64(run.Panics()["dns answer"])
	}))
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func register[C prometheus.Collector](m *metrics, c C) C {
	m.registry.MustRegister(c)
	return c
}

// watchMemory counts the answers of a memory.
func (m *metrics) watchMemory(get func() *memory) {
	for i, kind := range []string{"success", "denial"} {
		labels := prometheus.Labels{"server": serverLabel, "type": kind, "zones": ".", "view": ""}
		register(m, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "coredns", Subsystem: "cache", Name: "entries", Help: "The number of elements in the cache.", ConstLabels: labels}, func() float64 {
			n, _ := get().count(i)
			return float64(n)
		}))
		register(m, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "coredns", Subsystem: "cache", Name: "evictions_total", Help: "The count of cache evictions.", ConstLabels: labels}, func() float64 {
			_, n := get().count(i)
			return float64(n)
		}))
	}
}

// count is how many answers there are of success or denial, and how many have made room.
func (m *memory) count(denial int) (entries int, evicted uint64) {
	for i := range m.parts {
		p := &m.parts[i]
		p.mu.Lock()
		for _, a := range p.answers {
			if a.isDenial == (denial == 1) {
				entries++
			}
		}
		evicted += p.evicted[denial]
		p.mu.Unlock()
	}
	return entries, evicted
}

// counters are those of a zone, found once: a query allocates nothing to be counted.
type counters struct {
	requests                  [2][2]map[uint16]prometheus.Counter
	responses                 [len(pluginOf)][16]prometheus.Counter
	do                        prometheus.Counter
	hits                      [2]prometheus.Counter
	duration                  prometheus.Observer
	requestSize, responseSize [2]prometheus.Observer
}

// countedTypes are those that CoreDNS counts by themselves.
var countedTypes = []uint16{
	dns.TypeAAAA, dns.TypeA, dns.TypeCNAME, dns.TypeDNSKEY, dns.TypeDS, dns.TypeMX, dns.TypeNSEC3, dns.TypeNSEC, dns.TypeNS,
	dns.TypePTR, dns.TypeRRSIG, dns.TypeSOA, dns.TypeSRV, dns.TypeTXT, dns.TypeHTTPS, dns.TypeANY, dns.TypeNone,
}

func (m *metrics) server(zone string) *counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.servers[zone]; c != nil {
		return c
	}
	c := &counters{do: m.do.WithLabelValues(serverLabel, zone, ""), duration: m.duration.WithLabelValues(serverLabel, zone, "")}
	for i, proto := range []string{"udp", "tcp"} {
		c.requestSize[i] = m.requestSize.WithLabelValues(serverLabel, zone, "", proto)
		c.responseSize[i] = m.responseSize.WithLabelValues(serverLabel, zone, "", proto)
		for j, family := range []string{"1", "2"} {
			c.requests[i][j] = map[uint16]prometheus.Counter{}
			for _, t := range countedTypes {
				name := dns.TypeToString[t]
				if t == dns.TypeNone {
					name = "other"
				}
				c.requests[i][j][t] = m.requests.WithLabelValues(serverLabel, zone, "", proto, family, name)
			}
		}
	}
	for i, kind := range []string{"success", "denial"} {
		c.hits[i] = m.cacheHits.WithLabelValues(serverLabel, kind, zone, "")
	}
	for i, plugin := range pluginOf {
		for _, rcode := range []int{dns.RcodeSuccess, dns.RcodeServerFailure, dns.RcodeNameError, dns.RcodeRefused, dns.RcodeFormatError, dns.RcodeNotImplemented} {
			c.responses[i][rcode] = m.responses.WithLabelValues(serverLabel, zone, "", dns.RcodeToString[rcode], plugin)
		}
	}
	m.servers[zone] = c
	return c
}

// count counts an answer.
func (c *counters) count(q *query, stream, ipv6 bool, a *stored, size int, took time.Duration) {
	proto := boolInt(stream)
	n := c.requests[proto][boolInt(ipv6)][q.qtype]
	if n == nil {
		n = c.requests[proto][boolInt(ipv6)][dns.TypeNone]
	}
	n.Inc()
	if q.do {
		c.do.Inc()
	}
	if n := c.responses[a.source][a.wire[3]&0xf]; n != nil {
		n.Inc()
	}
	c.requestSize[proto].Observe(float64(q.size))
	c.responseSize[proto].Observe(float64(size))
	c.duration.Observe(took.Seconds())
}

// exchanged counts an answer of a server.
func (m *metrics) exchanged(server string, rcode int, took time.Duration) {
	name, ok := dns.RcodeToString[rcode]
	if !ok {
		name = strconv.Itoa(rcode)
	}
	m.proxied.WithLabelValues("forward", server, name).Observe(took.Seconds())
}

func (m *metrics) probeFailures(server string) { m.probes.WithLabelValues("forward", server).Inc() }

// observeProgramming notes how long a change of a headless Service's endpoints took
// to be known here. Upstream, too, tells such slices by their label.
func (m *metrics) observeProgramming(s *discoveryv1.EndpointSlice) {
	if _, headless := s.Labels[corev1.IsHeadlessService]; !headless {
		return
	}
	if at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		m.programming.WithLabelValues("headless_with_selector").Observe(time.Since(at).Seconds())
	}
}
