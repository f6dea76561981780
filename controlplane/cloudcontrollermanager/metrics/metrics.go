// Package metrics counts what the cloud controllers do, under upstream's names. It
// reads and writes nothing outside the process.
package metrics

import "github.com/prometheus/client_golang/prometheus"

// Metrics are those of one process, whoever leads in it how often.
type Metrics struct {
	// TaintRemoval and FirstSync are the seconds from a Node's creation until its
	// taint was removed, and until it was initialised.
	TaintRemoval, FirstSync prometheus.Histogram
	// BalancerSyncs counts calls that change a load balancer.
	BalancerSyncs prometheus.Counter
	// HostsErrors counts updates of a load balancer's hosts that failed.
	HostsErrors prometheus.Counter
	// HostsSync and HostsUpdate are the seconds that it took to give one load balancer
	// the hosts it should have, and the provider's part in that.
	HostsSync, HostsUpdate prometheus.Histogram
	// RouteSyncs counts comparisons of routes with nodes.
	RouteSyncs prometheus.Counter
}

// New makes metrics that nothing shows yet.
func New() *Metrics {
	counter := func(subsystem, name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: "[ALPHA] " + help})
	}
	histogram := func(subsystem, name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: "[ALPHA] " + help, Buckets: buckets})
	}
	const node, service = "node_controller", "service_controller"
	sinceCreation, calls := prometheus.ExponentialBuckets(1, 4, 6), prometheus.ExponentialBuckets(1, 2, 15)
	return &Metrics{
		TaintRemoval:  histogram(node, "cloud_provider_taint_removal_delay_seconds", "Seconds from the creation of a node to the removal of its cloud provider taint", sinceCreation),
		FirstSync:     histogram(node, "initial_node_sync_delay_seconds", "Seconds from the creation of a node to the end of its first synchronization", sinceCreation),
		BalancerSyncs: counter(service, "loadbalancer_sync_total", "How often a load balancer was configured after a change of services or nodes"),
		HostsErrors:   counter(service, "nodesync_error_total", "How often the configuration of a load balancer failed after a change of nodes"),
		HostsSync:     histogram(service, "nodesync_latency_seconds", "Latency of the update of a load balancer's hosts after a change of nodes", calls),
		HostsUpdate:   histogram(service, "update_loadbalancer_host_latency_seconds", "Latency of the provider's update of a load balancer's hosts", calls),
		RouteSyncs:    counter("route_controller", "route_sync_total", "How often routes were synchronized with the cloud provider"),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.TaintRemoval, m.FirstSync, m.BalancerSyncs, m.HostsErrors, m.HostsSync, m.HostsUpdate, m.RouteSyncs}
}
