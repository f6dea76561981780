package persistentvolume

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/controllermanager/volumemetrics"
	"knarr/internal/csimigration"
	"knarr/internal/run"
)

const metricsPrefix = "pv_collector_"

var (
	retroactive = prometheus.NewCounter(prometheus.CounterOpts{Name: "retroactive_storageclass_total",
		Help: "[ALPHA] Claims without a class that were to get the default one later"})
	retroactiveFailed = prometheus.NewCounter(prometheus.CounterOpts{Name: "retroactive_storageclass_errors_total",
		Help: "[ALPHA] Claims without a class that could not get the default one later"})

	ofClaims    = []string{"namespace", "storage_class", "volume_attributes_class"}
	volumeCount = gauge("total_pv_count", "PersistentVolumes", "plugin_name", "volume_mode")
	boundPVs    = gauge("bound_pv_count", "PersistentVolumes that are bound", "storage_class")
	unboundPVs  = gauge("unbound_pv_count", "PersistentVolumes that are not bound", "storage_class")
	boundPVCs   = gauge("bound_pvc_count", "PersistentVolumeClaims that are bound", ofClaims...)
	unboundPVCs = gauge("unbound_pvc_count", "PersistentVolumeClaims that are not bound", ofClaims...)
)

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricsPrefix+name, "[ALPHA] "+help, labels, nil)
}

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{retroactive, retroactiveFailed, collector{}}
}

// running is the controller that runs in this process; nil: none does.
var running atomic.Pointer[reconciler]

// A collector counts what the caches of the controller hold when it is asked.
type collector struct{}

// Describe names the gauges.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{volumeCount, boundPVs, unboundPVs, boundPVCs, unboundPVCs} {
		ch <- d
	}
}

// Collect counts.
func (collector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("controllers: metrics of volumes")
	r := running.Load()
	if r == nil {
		return
	}
	total, bound, unbound := map[[2]string]int{}, map[string]int{}, map[string]int{}
	for _, o := range r.volumes.List() {
		v := o.(*corev1.PersistentVolume)
		total[[2]string{volumemetrics.Plugin(v), string(deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem))}]++
		if v.Status.Phase == corev1.VolumeBound {
			bound[v.Spec.StorageClassName]++
		} else {
			unbound[v.Spec.StorageClassName]++
		}
	}
	send := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for of, n := range total {
		send(volumeCount, n, of[0], of[1])
	}
	for class, n := range bound {
		send(boundPVs, n, class)
	}
	for class, n := range unbound {
		send(unboundPVs, n, class)
	}
	claims := map[*prometheus.Desc]map[[3]string]int{boundPVCs: {}, unboundPVCs: {}}
	for _, o := range r.claims.List() {
		c := o.(*corev1.PersistentVolumeClaim)
		of := unboundPVCs
		if c.Status.Phase == corev1.ClaimBound {
			of = boundPVCs
		}
		claims[of][[3]string{c.Namespace, volume.GetPersistentVolumeClaimClass(c), deref(c.Spec.VolumeAttributesClassName, "")}]++
	}
	for d, all := range claims {
		for of, n := range all {
			send(d, n, of[:]...)
		}
	}
}

// An operation is one that has begun and not come about.
type operation struct {
	plugin string
	began  time.Time
}

// begin notes that an operation has begun, unless that is noted.
func begin[K comparable](all map[K]operation, key K, plugin string) {
	if _, known := all[key]; !known {
		all[key] = operation{plugin, time.Now()}
	}
}

// end counts an operation that has come about, if it is noted that it began.
func end[K comparable](all map[K]operation, key K, name string) {
	if o, known := all[key]; known {
		volumemetrics.Whole(name, o.plugin, time.Since(o.began))
		delete(all, key)
	}
}

// fail counts a try of an operation that failed, if it is noted that it began.
func fail[K comparable](all map[K]operation, key K, name string) {
	if o, known := all[key]; known {
		volumemetrics.Failed(name, o.plugin)
	}
}

// observeClaim counts what has become of the making of a claim's volume.
func (r *reconciler) observeClaim(key cache.ObjectName) {
	if _, known := r.provisioning[key]; !known {
		return
	}
	switch claim := r.claim(key); {
	case claim == nil:
		delete(r.provisioning, key)
	case bindCompleted(claim) && claim.Status.Phase == corev1.ClaimBound:
		end(r.provisioning, key, volumemetrics.Provision)
	}
}

// provisionerOf is who made a volume that is to be deleted, as its class says: what the
// volume itself says may be anything.
func (r *reconciler) provisionerOf(v *corev1.PersistentVolume) string {
	external, problem := deleter(v)
	if problem != "" {
		return volumemetrics.Unknown
	}
	if !external {
		return hostPath
	}
	class := r.classNamed(volume.GetPersistentVolumeClass(v))
	if class == nil {
		return volumemetrics.Unknown
	}
	if driver := csimigration.Driver(class.Provisioner); driver != "" {
		return driver
	}
	return class.Provisioner
}
