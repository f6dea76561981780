package aggregation

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

var (
	unavailable = prometheus.NewDesc("aggregator_unavailable_apiservice", "[ALPHA] 1 for an APIService that is not available, 0 for one that is.", []string{"name"}, nil)
	lost        = prometheus.NewDesc("aggregator_unavailable_apiservice_total", "[ALPHA] How often an APIService became unavailable, by the reason.", []string{"name", "reason"}, nil)
)

func available(s *apiregistrationv1.APIService) bool {
	return helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available)
}

// count counts an APIService that has become unavailable.
func (a *Aggregator) count(name, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost[[2]string{name, reason}]++
}

// Describe leaves the registry to find out.
func (a *Aggregator) Describe(chan<- *prometheus.Desc) {}

// Collect tells of each APIService whether it is available.
func (a *Aggregator) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of aggregation")
	watchcache.Each(a.services, "", func(s *apiregistrationv1.APIService) bool {
		v := 1.0
		if available(s) {
			v = 0
		}
		out <- prometheus.MustNewConstMetric(unavailable, prometheus.GaugeValue, v, s.Name)
		return true
	})
	a.mu.Lock()
	counts := maps.Clone(a.lost)
	a.mu.Unlock()
	for k, n := range counts {
		out <- prometheus.MustNewConstMetric(lost, prometheus.CounterValue, float64(n), k[0], k[1])
	}
}
