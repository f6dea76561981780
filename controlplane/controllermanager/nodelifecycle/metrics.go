package nodelifecycle

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

var evictions = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "node_collector_evictions_total",
	Help: "[STABLE] Nodes whose pods were made to leave"}, []string{"zone"})

var byZone = []string{"zone"}

var (
	zoneSize = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_collector_zone_size",
		Help: "[ALPHA] Nodes of a zone"}, byZone)
	zoneHealth = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_collector_zone_health",
		Help: "[ALPHA] How many of a hundred nodes of a zone are ready"}, byZone)
	unhealthyNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_collector_unhealthy_nodes_in_zone",
		Help: "[ALPHA] Nodes of a zone that are not ready"}, byZone)
	lookTook = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "node_collector_update_node_health_duration_seconds",
		Help: "[ALPHA] How long a look at a node took", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{evictions, zoneSize, zoneHealth, unhealthyNodes, lookTook}
}

// observeZone tells how a zone is. One without nodes is told of no more: nodes name their
// zones, and a hostile one could have a new one every moment.
func observeZone(key string, all, ready int) {
	label := zoneLabel(key)
	if all == 0 {
		for _, v := range []interface{ DeleteLabelValues(...string) bool }{zoneSize, zoneHealth, unhealthyNodes, evictions} {
			v.DeleteLabelValues(label)
		}
		return
	}
	health := 100 * float64(ready) / float64(all)
	zoneSize.WithLabelValues(label).Set(float64(all))
	zoneHealth.WithLabelValues(label).Set(health)
	unhealthyNodes.WithLabelValues(label).Set(float64(all - ready))
}

// zoneLabel is how upstream writes a zone, which is given as region/zone.
func zoneLabel(key string) string {
	if key == "/" {
		return ""
	}
	return strings.Replace(key, "/", ":\x00:", 1)
}

// observe counts that pods have to leave a node from now on.
func observe(node *corev1.Node, taints []corev1.Taint) {
	if leaving(node.Spec.Taints) || !leaving(taints) {
		return
	}
	evictions.WithLabelValues(zoneLabel(zoneOf(node))).Inc()
}

func leaving(taints []corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}
