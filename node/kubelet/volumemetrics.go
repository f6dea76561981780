package kubelet

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"knarr/node/kubelet/csi"
	"knarr/node/kubelet/volume"
)

// volumeMetrics are what is counted of volumes.
type volumeMetrics struct {
	took, whole, calls           *prometheus.HistogramVec
	found, unreadable            prometheus.Counter // in pods' directories, at the start
	forceCleaned, forceUncleaned prometheus.Counter // of those that are unreadable

	mu      sync.Mutex
	drivers map[string]bool // the plugins of those that were called
}

func newVolumeMetrics(r *prometheus.Registry) *volumeMetrics {
	took := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: "[ALPHA] " + help, Buckets: volumeBuckets}, labels)
	}
	count := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help})
	}
	m := &volumeMetrics{
		drivers:        map[string]bool{},
		took:           took("storage_operation_duration_seconds", "How long operations of volumes took", "volume_plugin", "operation_name", "status", "migrated"),
		whole:          took("volume_operation_total_seconds", "How long operations of volumes took with all that they waited for", "plugin_name", "operation_name"),
		calls:          took("csi_operations_seconds", "How long calls to storage drivers took", "driver_name", "method_name", "grpc_status_code", "migrated"),
		found:          count("reconstruct_volume_operations_total", "Volumes that pods had on this node when the kubelet began"),
		unreadable:     count("reconstruct_volume_operations_errors_total", "Those of them of which nothing could be read that is noted"),
		forceCleaned:   count("force_cleaned_failed_volume_operations_total", "Volumes that were taken away though nothing could be read that is noted of them"),
		forceUncleaned: count("force_cleaned_failed_volume_operation_errors_total", "Those of them that could not be taken away"),
	}
	r.MustRegister(m.took, m.whole, m.calls, m.found, m.unreadable, m.forceCleaned, m.forceUncleaned)
	return m
}

// known is a plugin's name without that of a driver that was never called: pods name drivers
// as they like, and each would be counted for ever.
func (m *volumeMetrics) known(plugin string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name, driver, ok := strings.Cut(plugin, ":"); ok && driver != "" && !m.drivers[plugin] {
		return name
	}
	return plugin
}

// did observes an operation of a volume.
func (m *volumeMetrics) did(o volume.Operation) {
	o.Plugin = m.known(o.Plugin)
	if o.Name == volume.OpWhole {
		m.whole.WithLabelValues(o.Plugin, o.Name).Observe(o.Took.Seconds())
		return
	}
	result := "success"
	if o.Err != nil {
		result = "fail-unknown"
	}
	m.took.WithLabelValues(o.Plugin, o.Name, result, yesNo(o.Migrated)).Observe(o.Took.Seconds())
}

// called observes a call to a storage driver.
func (m *volumeMetrics) called(c csi.Call) {
	m.mu.Lock()
	m.drivers[volume.DriverPlugin(c.Driver)] = true
	m.mu.Unlock()
	code := "unknown-non-grpc"
	if s, ok := status.FromError(c.Err); ok {
		code = s.Code().String()
	}
	m.calls.WithLabelValues(c.Driver, c.Method, code, yesNo(c.Migrated)).Observe(c.Took.Seconds())
}

// cleaned counts a volume that was taken away, or could not be, of which nothing could be
// read.
func (m *volumeMetrics) cleaned(err error) {
	m.forceCleaned.Inc()
	if err != nil {
		m.forceUncleaned.Inc()
	}
}

// counted counts the volumes that pods had when the kubelet began.
func (m *volumeMetrics) counted(found, unreadable int) {
	m.found.Add(float64(found))
	m.unreadable.Add(float64(unreadable))
}
