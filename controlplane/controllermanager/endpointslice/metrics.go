package endpointslice

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/backends"
	"knarr/internal/run"
)

const metricsPrefix = "endpoint_slice_controller_"

var (
	perSync = prometheus.ExponentialBuckets(2, 2, 15)
	added   = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "endpoints_added_per_sync",
		Help: "[BETA] Endpoints that a look at a Service added", Buckets: perSync})
	removed = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "endpoints_removed_per_sync",
		Help: "[BETA] Endpoints that a look at a Service removed", Buckets: perSync})
	written = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "changes",
		Help: "[ALPHA] EndpointSlices written: create, update, delete"}, []string{"operation"})
	changed = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "endpointslices_changed_per_sync",
		Help: "[ALPHA] EndpointSlices that a look at a Service wrote"}, []string{"topology", "traffic_distribution"})
	syncs = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "syncs",
		Help: "[ALPHA] Looks at a Service: success, stale (the cache was not up to date yet), error"}, []string{"result"})

	desired        = gauge("endpoints_desired", "Endpoints of Services")
	slicesNow      = gauge("num_endpoint_slices", "EndpointSlices of Services")
	slicesAtLeast  = gauge("desired_endpoint_slices", "EndpointSlices that would do for the endpoints of Services")
	byDistribution = gauge("services_count_by_traffic_distribution", "Services with a traffic distribution", "traffic_distribution")
)

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricsPrefix+name, "[BETA] "+help, labels, nil)
}

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{added, removed, written, changed, syncs, collector{}}
}

// running is the controller that runs in this process; nil: none does.
var running atomic.Pointer[reconciler]

// A collector counts what the caches of the controller hold when it is asked.
type collector struct{}

// Describe names the gauges.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{desired, slicesNow, slicesAtLeast, byDistribution} {
		ch <- d
	}
}

// Collect counts.
func (collector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("controllers: metrics of slices")
	r := running.Load()
	if r == nil {
		return
	}
	send := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	endpoints, number, least := countSlices(r.slices.List(), r.perSlice)
	send(desired, endpoints)
	send(slicesNow, number)
	send(slicesAtLeast, least)
	distributions := map[string]int{}
	for _, o := range r.services.List() {
		if svc := o.(*corev1.Service); backends.Selects(svc) {
			if of := distributionOf(svc); of != "" {
				distributions[of]++
			}
		}
	}
	for of, n := range distributions {
		send(byDistribution, n, of)
	}
}

// countSlices counts the endpoints of all Services, their slices, and how many of these
// would do: only endpoints of one Service, address type and list of ports share some, and a
// Service without any has one nevertheless. Pure.
func countSlices(all []any, perSlice int) (endpoints, number, least int) {
	type group struct {
		service cache.ObjectName
		family  discoveryv1.AddressType
		ports   string
	}
	groups, services := map[group]int{}, map[group]bool{}
	for _, o := range all {
		s := o.(*discoveryv1.EndpointSlice)
		key, ours := serviceOf(s)
		if !ours {
			continue
		}
		number++
		endpoints += len(s.Endpoints)
		of := group{service: key, family: s.AddressType}
		services[of] = services[of] || len(s.Endpoints) > 0
		of.ports = backends.PortsKey(s.Ports)
		groups[of] += len(s.Endpoints)
	}
	for _, n := range groups {
		least += (n + perSlice - 1) / perSlice
	}
	for _, has := range services {
		if !has {
			least++
		}
	}
	return endpoints, number, least
}

// distributionOf is how a Service wants its traffic distributed; "" if that does not count.
func distributionOf(svc *corev1.Service) string {
	d := svc.Spec.TrafficDistribution
	if d == nil || auto(svc) {
		return ""
	}
	switch *d {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
		return *d
	}
	return ""
}

// observe counts a look at a Service whose slices were as in have, and are to be as planned.
func observe(svc *corev1.Service, have []*discoveryv1.EndpointSlice, c changes) {
	plus, minus := c.endpoints(have)
	added.Observe(float64(plus))
	removed.Observe(float64(minus))
	topology := "Disabled"
	if auto(svc) {
		topology = "Auto"
	}
	changed.WithLabelValues(topology, distributionOf(svc)).Observe(float64(len(c.create) + len(c.update) + len(c.remove)))
}

// endpoints counts those that the changes bring and take, of slices as in have. One that
// moves is neither. Pure.
func (c changes) endpoints(have []*discoveryv1.EndpointSlice) (plus, minus int) {
	if len(c.create)+len(c.update)+len(c.remove) == 0 {
		return 0, 0
	}
	type of struct {
		family discoveryv1.AddressType
		uid    types.UID
	}
	count := map[of]int{}
	add := func(slices []*discoveryv1.EndpointSlice, n int, only map[string]bool) {
		for _, s := range slices {
			if only != nil && !only[s.Name] {
				continue
			}
			for _, ep := range s.Endpoints {
				count[of{s.AddressType, uidOf(ep)}] += n
			}
		}
	}
	touched := map[string]bool{}
	for _, s := range c.update {
		touched[s.Name] = true
	}
	for _, s := range c.remove {
		touched[s.Name] = true
	}
	add(have, -1, touched)
	add(c.create, 1, nil)
	add(c.update, 1, nil)
	for _, n := range count {
		plus += max(n, 0)
		minus += max(-n, 0)
	}
	return plus, minus
}

// observeSync counts the result of a look.
func observeSync(stale bool, err error) {
	result := "success"
	switch {
	case err != nil:
		result = "error"
	case stale:
		result = "stale"
	}
	syncs.WithLabelValues(result).Inc()
}
