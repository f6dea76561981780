// Package volumemetrics counts what controllers do with volumes, under upstream's names:
// operations, how long they took with all that they waited for, and those that failed. It
// reads and writes nothing else.
package volumemetrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/csimigration"
)

// The names of operations.
const (
	Attach   = "volume_attach"
	Detach   = "volume_detach"
	Deletion = "volume_delete"
	// Provisioning is the making of a volume within this process.
	Provisioning = "volume_provision"
	Provision    = "provision" // with all that it waits for
	Delete       = "delete"    // with all that it waits for
)

// Unknown is the plugin of what has none.
const Unknown = "N/A"

var (
	buckets    = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	operations = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "storage_operation_duration_seconds",
		Help: "[ALPHA] How long operations of volumes took", Buckets: buckets}, []string{"volume_plugin", "operation_name", "status", "migrated"})
	byPlugin = []string{"plugin_name", "operation_name"}
	whole    = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "volume_operation_total_seconds",
		Help: "[ALPHA] How long operations of volumes took with all that they waited for", Buckets: buckets}, byPlugin)
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "volume_operation_errors_total", Help: "[ALPHA] Operations of volumes that failed"}, byPlugin)
	// deprecated has the name that failures had before.
	deprecated = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "volume_operation_total_errors",
		Help: "[ALPHA] Operations of volumes that failed (Deprecated since 1.36.0)"}, byPlugin)
)

// Metrics are what is counted here.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{operations, whole, failures, deprecated}
}

// Done counts an operation.
func Done(name, plugin string, migrated bool, took time.Duration, failed bool) {
	status := "success"
	if failed {
		status = "fail-unknown"
	}
	operations.WithLabelValues(plugin, name, status, strconv.FormatBool(migrated)).Observe(took.Seconds())
}

// Whole counts an operation that has come about, with all that it waited for.
func Whole(name, plugin string, took time.Duration) {
	whole.WithLabelValues(plugin, name).Observe(took.Seconds())
}

// Failed counts a try of an operation that failed.
func Failed(name, plugin string) {
	failures.WithLabelValues(plugin, name).Inc()
	deprecated.WithLabelValues(plugin, name).Inc()
}

// DriverPlugin is what the plugin of a CSI driver's volumes is called.
func DriverPlugin(driver string) string { return "kubernetes.io/csi:" + driver }

// Plugin is the plugin of a volume, as upstream's controllers know it. Pure.
func Plugin(v *corev1.PersistentVolume) string {
	if c := v.Spec.CSI; c != nil {
		return DriverPlugin(c.Driver)
	}
	for _, p := range []struct {
		is   bool
		name string
	}{
		{v.Spec.HostPath != nil, "host-path"}, {v.Spec.NFS != nil, "nfs"}, {v.Spec.FC != nil, "fc"}, {v.Spec.ISCSI != nil, "iscsi"},
	} {
		if p.is {
			return "kubernetes.io/" + p.name
		}
	}
	return Unknown
}

// Attachable is the plugin of a volume that can be attached, and that has taken over from
// the volume's own where that is so; false if none can.
func Attachable(v *corev1.PersistentVolume) (string, bool) {
	if c := csimigration.Source(v); c != nil {
		return DriverPlugin(c.Driver), true
	}
	return Plugin(v), v.Spec.FC != nil || v.Spec.ISCSI != nil
}
