package kubeproxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// metrics are upstream's of its nftables mode, with its names and labels.
type metrics struct {
	registry *prometheus.Registry

	sync, full, partial, programming, flows *prometheus.HistogramVec // by family

	synced, noLocal                  *prometheus.GaugeVec
	queued                           prometheus.Gauge
	endpointsPending, servicePending prometheus.Gauge
	endpointChanges, serviceChanges  prometheus.Counter
	failures, cleanups, deletedFlows *prometheus.CounterVec
	healthz, livez                   *prometheus.CounterVec
}

// familyLabel is the label of what is counted for each address family.
const familyLabel = "ip_family"

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return register(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "kubeproxy", Name: name, Help: help, Buckets: buckets}, []string{familyLabel}))
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubeproxy", Name: name, Help: help}, []string{label}))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(m, prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: "kubeproxy", Name: name, Help: help}))
	}
	total := func(name, help string) prometheus.Counter {
		return register(m, prometheus.NewCounter(prometheus.CounterOpts{Subsystem: "kubeproxy", Name: name, Help: help}))
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "kubeproxy", Name: name, Help: help}, labels))
	}
	seconds := prometheus.ExponentialBuckets(0.001, 2, 15)
	m.sync = histogram("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds", seconds)
	m.full = histogram("sync_full_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for full resyncs", seconds)
	m.partial = histogram("sync_partial_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for partial resyncs", seconds)
	m.programming = histogram("network_programming_duration_seconds", "In Cluster Network Programming Latency in seconds", programmingBuckets())
	m.flows = histogram("conntrack_reconciler_sync_duration_seconds", "ReconcileConntrackFlowsLatency latency in seconds", seconds)
	m.synced = gauges("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced", familyLabel)
	m.noLocal = gauges("sync_proxy_rules_no_local_endpoints_total", "Number of services with a Local traffic policy and no endpoints", familyLabel, "traffic_policy")
	m.queued = gauge("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued")
	m.endpointsPending = gauge("sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes")
	m.servicePending = gauge("sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes")
	m.endpointChanges = total("sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes")
	m.serviceChanges = total("sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes")
	m.failures = counter("sync_proxy_rules_nftables_sync_failures_total", "Cumulative proxy nftables sync failures", familyLabel)
	m.cleanups = counter("sync_proxy_rules_nftables_cleanup_failures_total", "Cumulative proxy nftables cleanup failures", familyLabel)
	m.deletedFlows = counter("conntrack_reconciler_deleted_entries_total", "Cumulative conntrack flows deleted by conntrack reconciler", familyLabel)
	m.healthz = counter("proxy_healthz_total", "Cumulative proxy healthz HTTP status", "code")
	m.livez = counter("proxy_livez_total", "Cumulative proxy livez HTTP status", "code")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// A measured Dataplane has metrics of its own.
type measured interface {
	Collectors() []prometheus.Collector
}

func register[C prometheus.Collector](m *metrics, c C) C {
	m.registry.MustRegister(c)
	return c
}

func programmingBuckets() (b []float64) {
	b = prometheus.LinearBuckets(0.25, 0.25, 2)
	b = append(b, prometheus.LinearBuckets(1, 1, 59)...)
	b = append(b, prometheus.LinearBuckets(60, 5, 12)...)
	return append(b, prometheus.LinearBuckets(120, 30, 7)...)
}

// observeSync notes one family's try to write rules.
func (m *metrics) observeSync(family string, all bool, began time.Time, err error) {
	if err != nil {
		m.failures.WithLabelValues(family).Inc()
		return
	}
	took := time.Since(began).Seconds()
	m.sync.WithLabelValues(family).Observe(took)
	if all {
		m.full.WithLabelValues(family).Observe(took)
	} else {
		m.partial.WithLabelValues(family).Observe(took)
	}
	m.synced.WithLabelValues(family).SetToCurrentTime()
}

// observeApply notes that a Dataplane has written what was asked for, one that does not
// measure each of its families itself.
func (m *metrics) observeApply(all bool, began time.Time) {
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		m.observeSync(string(family), all, began, nil)
	}
}

// noteChange counts what waits to be written.
func (m *metrics) noteChange(o any, first bool) {
	changes, pending := m.serviceChanges, m.servicePending
	if _, ok := o.(*discoveryv1.EndpointSlice); ok {
		changes, pending = m.endpointChanges, m.endpointsPending
	}
	changes.Inc()
	if !first {
		pending.Inc()
		m.queued.SetToCurrentTime()
	}
}

// observeTriggers notes how long changes of endpoints took from their cause to
// this node's rules.
func (m *metrics) observeTriggers(triggers []trigger) {
	for _, t := range triggers {
		m.programming.WithLabelValues(t.family).Observe(time.Since(t.at).Seconds())
	}
}

// A trigger is when something made endpoints change, by the control plane.
type trigger struct {
	family string
	at     time.Time
}

// triggerOf is that of a slice; none when it does not say.
func triggerOf(s *discoveryv1.EndpointSlice) (t trigger, ok bool) {
	at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	t = trigger{string(corev1.IPv4Protocol), at}
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		t.family = string(corev1.IPv6Protocol)
	}
	return t, err == nil
}

// missing are the Services without endpoints where their policy wants them.
type missing struct {
	metrics *metrics
	of      map[cache.ObjectName][]prometheus.Gauge
}

// set counts those of a Service's rules, each once.
func (m missing) set(name cache.ObjectName, r Rules) {
	for _, g := range m.of[name] {
		g.Dec()
	}
	delete(m.of, name)
	seen := map[[2]string]bool{}
	for front, target := range r.Fronts {
		if !target.Drop {
			continue
		}
		labels := [2]string{string(corev1.IPv4Protocol), "external"}
		if front.Addr.Is6() {
			labels[0] = string(corev1.IPv6Protocol)
		}
		if r.ClusterIPs[front.Addr] {
			labels[1] = "internal"
		}
		if !seen[labels] {
			seen[labels] = true
			g := m.metrics.noLocal.WithLabelValues(labels[:]...)
			g.Inc()
			m.of[name] = append(m.of[name], g)
		}
	}
}
