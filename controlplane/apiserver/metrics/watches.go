package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/internal/run"
)

// Watches counts what watchers are sent.
type Watches struct {
	series series[schema.GroupVersionResource, Events]
}

// Events are those of one resource.
type Events struct{ sizes histogram }

var (
	eventBounds = prometheus.ExponentialBuckets(1024, 2, 8)
	watchEvents = desc("apiserver_watch_events_total", "[ALPHA] Events sent to watchers.", "group", "version", "resource")
	watchSizes  = desc("apiserver_watch_events_sizes", "[ALPHA] Sizes of events sent to watchers in bytes.", "group", "version", "resource")
)

func newWatches() *Watches { return &Watches{} }

// Of is where a watch of a resource counts.
func (w *Watches) Of(gvr schema.GroupVersionResource) *Events {
	if w == nil {
		return nil
	}
	return w.series.get(gvr, func() *Events { return &Events{sizes: newHistogram(eventBounds)} })
}

// ObserveSent counts events of so many bytes each.
func (e *Events) ObserveSent(sizes []int) {
	if e != nil {
		e.sizes.all(sizes)
	}
}

// Describe leaves the registry to find out.
func (w *Watches) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts.
func (w *Watches) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of watches")
	w.series.each(func(k schema.GroupVersionResource, e *Events) {
		out <- counter(watchEvents, e.sizes.count(), k.Group, k.Version, k.Resource)
		out <- e.sizes.metric(watchSizes, bytes, k.Group, k.Version, k.Resource)
	})
}
