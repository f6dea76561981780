package attachdetach

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"knarr/controlplane/controllermanager/pods"
	"knarr/controlplane/controllermanager/volumemetrics"
	"knarr/internal/run"
)

var (
	forced = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "attach_detach_controller_attachdetach_controller_forced_detaches",
		Help: "[ALPHA] Volumes that were detached without the node being asked"}, []string{"reason"})
	inUse = prometheus.NewDesc("storage_count_attachable_volumes_in_use", "[ALPHA] Volumes that can be attached and that pods on a node have",
		[]string{"node", "volume_plugin"}, nil)
	total = prometheus.NewDesc("attachdetach_controller_total_volumes", "[ALPHA] Volumes that are to be attached to nodes, and those that are",
		[]string{"plugin_name", "state"}, nil)
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector { return []prometheus.Collector{forced, collector{}} }

// running is the controller that runs in this process; nil: none does.
var running atomic.Pointer[reconciler]

// A collector counts what the caches of the controller hold when it is asked.
type collector struct{}

// Describe names the gauges.
func (collector) Describe(ch chan<- *prometheus.Desc) { ch <- inUse; ch <- total }

// Collect counts, each pod and attachment once.
func (collector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("controllers: metrics of attachments")
	r := running.Load()
	if r == nil {
		return
	}
	onNodes, states := r.volumesOfPods()
	for _, o := range r.attachments.List() {
		if a := o.(*storagev1.VolumeAttachment); a.Status.Attached {
			states[[2]string{volumemetrics.DriverPlugin(a.Spec.Attacher), "actual_state_of_world"}]++
		}
	}
	for d, all := range map[*prometheus.Desc]map[[2]string]int{inUse: onNodes, total: states} {
		for of, n := range all {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), of[0], of[1])
		}
	}
}

// volumesOfPods counts the volumes that pods on nodes have, by node and plugin, and those
// that are to be attached for them, by plugin and state.
func (r *reconciler) volumesOfPods() (onNodes, states map[[2]string]int) {
	onNodes, states = map[[2]string]int{}, map[[2]string]int{}
	wanted := map[key]bool{}
	for _, o := range r.pods.List() {
		pod := o.(*corev1.Pod)
		if pod.Spec.NodeName == "" || len(pod.Spec.Volumes) == 0 {
			continue
		}
		for i := range pod.Spec.Volumes {
			if c := pod.Spec.Volumes[i].CSI; c != nil {
				onNodes[[2]string{pod.Spec.NodeName, volumemetrics.DriverPlugin(c.Driver)}]++
			}
		}
		for _, v := range r.volumesOf(pod) {
			plugin, ok := volumemetrics.Attachable(v)
			if !ok {
				continue
			}
			onNodes[[2]string{pod.Spec.NodeName, plugin}]++
			if of := (key{nameOf(v), pod.Spec.NodeName}); of.volume != "" && !wanted[of] && r.attaches(pod, of.volume) {
				wanted[of] = true
				states[[2]string{plugin, "desired_state_of_world"}]++
			}
		}
	}
	return onNodes, states
}

// volumesOf are those of a pod that are PersistentVolumes, or are as one.
func (r *reconciler) volumesOf(pod *corev1.Pod) (all []*corev1.PersistentVolume) {
	for _, claim := range pods.Claims(pod) {
		if v := r.bound(pod.Namespace, claim); v != nil {
			all = append(all, v)
		}
	}
	return append(all, inline(pod)...)
}

// attaches says whether a volume is to be attached for a pod.
func (r *reconciler) attaches(pod *corev1.Pod, name corev1.UniqueVolumeName) bool {
	driver, _, _ := split(name)
	return !terminated(pod) && r.manages(pod.Spec.NodeName) && r.attachRequired(driver)
}

// An outcome is an operation that has ended.
type outcome struct {
	name   string
	took   time.Duration
	failed bool
}

// settle counts the attachments and detachments that have come about since the last look.
func (d *decision) settle(v *volume, m *memory, now time.Time) {
	for node, since := range m.attaching {
		switch a := v.attachments[node]; {
		case a == nil || a.DeletionTimestamp != nil:
			delete(m.attaching, node)
		case a.Status.Attached:
			d.done = append(d.done, outcome{name: volumemetrics.Attach, took: now.Sub(since)})
			delete(m.attaching, node)
		}
	}
	for node, g := range m.detaching {
		o := outcome{name: volumemetrics.Detach, took: now.Sub(g.since)}
		switch a := v.attachments[node]; {
		case a == nil || a.UID != g.uid:
			d.done = append(d.done, o)
			delete(m.detaching, node)
		case g.fails(a, now):
			o.failed = true
			d.done = append(d.done, o)
			m.detaching[node] = g.retried(a, now)
			d.later(attachTime)
		default:
			d.later(attachTime - o.took)
		}
	}
}

// observe counts what has ended.
func (v *volume) observe(all ...outcome) {
	for _, o := range all {
		volumemetrics.Done(o.name, volumemetrics.DriverPlugin(v.driver), v.migrated, o.took, o.failed)
	}
}

// note changes what is remembered of a volume.
func (r *reconciler) note(name corev1.UniqueVolumeName, change func(*memory)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memories[name]
	if m == nil {
		m = newMemory()
		r.memories[name] = m
	}
	change(m)
}
