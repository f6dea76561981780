package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/internal/run"
)

// Store counts requests to the datastore.
type Store struct{ series series[storeKey, storeCounts] }

type storeKey struct {
	operation string
	of        schema.GroupResource
}

type storeCounts struct {
	in     histogram
	failed atomic.Uint64
}

var (
	storeBounds   = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	storeDuration = desc("etcd_request_duration_seconds", "[ALPHA] Time that a request to etcd took.", "operation", "group", "resource")
	storeRequests = desc("etcd_requests_total", "[ALPHA] Requests to etcd.", "operation", "group", "resource")
	storeErrors   = desc("etcd_request_errors_total", "[ALPHA] Requests to etcd that failed.", "operation", "group", "resource")
)

func newStore() *Store { return &Store{} }

// ObserveRequest counts one request.
func (s *Store) ObserveRequest(operation string, of schema.GroupResource, took time.Duration, err error) {
	n := s.series.get(storeKey{operation, of}, func() *storeCounts { return &storeCounts{in: newHistogram(storeBounds)} })
	n.in.took(took)
	if err != nil {
		n.failed.Add(1)
	}
}

// Describe leaves the registry to find out.
func (s *Store) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts.
func (s *Store) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of the store")
	s.series.each(func(k storeKey, n *storeCounts) {
		out <- n.in.metric(storeDuration, nanoseconds, k.operation, k.of.Group, k.of.Resource)
		out <- counter(storeRequests, n.in.count(), k.operation, k.of.Group, k.of.Resource)
		if failed := n.failed.Load(); failed > 0 {
			out <- counter(storeErrors, failed, k.operation, k.of.Group, k.of.Resource)
		}
	})
}
