package iptables

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are upstream's of this mode.
type metrics struct {
	total, last       *prometheus.GaugeVec   // rules by table and family
	failures, partial *prometheus.CounterVec // of iptables-restore, by family
}

func newMetrics() *metrics {
	gauges := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "kubeproxy", Name: name, Help: help}, []string{"table", "ip_family"})
	}
	counters := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubeproxy", Name: name, Help: help}, []string{"ip_family"})
	}
	return &metrics{
		total:    gauges("sync_proxy_rules_iptables_total", "Total number of iptables rules owned by kube-proxy"),
		last:     gauges("sync_proxy_rules_iptables_last", "Number of iptables rules written by kube-proxy in last sync"),
		failures: counters("sync_proxy_rules_iptables_restore_failures_total", "Cumulative proxy iptables restore failures"),
		partial:  counters("sync_proxy_rules_iptables_partial_restore_failures_total", "Cumulative proxy iptables partial restore failures"),
	}
}

// Collectors are the metrics of this mode alone.
func (d *Dataplane) Collectors() []prometheus.Collector {
	return []prometheus.Collector{d.metrics.total, d.metrics.last, d.metrics.failures, d.metrics.partial}
}

// restored notes a run of iptables-restore: what it wrote, and what is there with the
// chains of the Services that it left as they were.
func (f *family) restored(s *script, whole bool, err error) {
	m, label := f.metrics, map[bool]string{false: "IPv4", true: "IPv6"}[f.state.v6]
	if err != nil {
		if m.failures.WithLabelValues(label).Inc(); !whole {
			m.partial.WithLabelValues(label).Inc()
		}
		return
	}
	last, table, chains := map[string]int{"filter": 0, "nat": 0}, "", 0
	for line := range strings.Lines(s.text.String()) {
		switch line[0] {
		case '*':
			table = strings.TrimSpace(line[1:])
		case '-':
			if line[1] == 'A' { // -I are the ways into our chains
				last[table]++
			}
		}
	}
	for name, r := range f.state.services {
		for _, c := range r.chains {
			if !s.wrote[name] {
				chains += len(c.rules)
			}
		}
	}
	for table, n := range last {
		m.last.WithLabelValues(table, label).Set(float64(n))
		if table == "nat" {
			n += chains
		}
		m.total.WithLabelValues(table, label).Set(float64(n))
	}
}
