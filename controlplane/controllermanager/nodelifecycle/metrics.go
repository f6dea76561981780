package nodelifecycle

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

var evictions = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "node_collector_evictions_total",
	Help: "[STABLE] Nodes whose pods were made to leave"}, []string{"zone"})

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{evictions} }

// observe counts that pods have to leave a node from now on.
func observe(node *corev1.Node, taints []corev1.Taint) {
	if leaving(node.Spec.Taints) || !leaving(taints) {
		return
	}
	zone := "" // as upstream has it
	if region, name := node.Labels[corev1.LabelTopologyRegion], node.Labels[corev1.LabelTopologyZone]; region != "" || name != "" {
		zone = region + ":\x00:" + name
	}
	evictions.WithLabelValues(zone).Inc()
}

func leaving(taints []corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}
