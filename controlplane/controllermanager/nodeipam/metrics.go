package nodeipam

import "github.com/prometheus/client_golang/prometheus"

var byRange = []string{"clusterCIDR"}

var (
	allocations = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "node_ipam_controller_cidrset_cidrs_allocations_total",
		Help: "[ALPHA] Parts of a range that a node got"}, byRange)
	releases = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "node_ipam_controller_cidrset_cidrs_releases_total",
		Help: "[ALPHA] Parts of a range that no node has any more"}, byRange)
	usage = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_ipam_controller_cidrset_usage_cidrs",
		Help: "[ALPHA] The part of a range that nodes have, from 0 to 1"}, byRange)
	// Upstream's name has the mistake.
	most = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_ipam_controller_cirdset_max_cidrs",
		Help: "[ALPHA] How many parts a range has"}, byRange)
	tries = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "node_ipam_controller_cidrset_allocation_tries_per_request",
		Help: "[ALPHA] Parts that somebody had before one was found that nobody has", Buckets: prometheus.ExponentialBuckets(1, 5, 5)}, byRange)
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{allocations, releases, usage, most, tries}
}

// observe tells how much of a range is in use. A part of it was nobody's before if it is
// taken, and is nobody's now if it is left.
func (p *pool) observe(taken, left bool) {
	label := p.whole.String()
	if taken {
		allocations.WithLabelValues(label).Inc()
	}
	if left {
		releases.WithLabelValues(label).Inc()
	}
	usage.WithLabelValues(label).Set(float64(len(p.used)) / float64(p.size()))
}
