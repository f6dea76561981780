package kubelet

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/podspec"
)

// resizeMetrics are of pods that are given other resources while they run.
type resizeMetrics struct {
	asked      *prometheus.CounterVec // by resource, requests or limits, and direction
	took       *prometheus.HistogramVec
	infeasible *prometheus.CounterVec
	accepted   *prometheus.CounterVec // that had waited, by what made room
}

func newResizeMetrics(r prometheus.Registerer) resizeMetrics {
	m := resizeMetrics{
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_container_requested_resizes_total", Help: "[ALPHA] Changes of containers' resources that were asked for"},
			[]string{"resource", "requirement", "operation"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_pod_resize_duration_milliseconds", Help: "[ALPHA] How long it took to give containers that run other resources",
			Buckets: []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}}, []string{"success"}),
		infeasible: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_pod_infeasible_resizes_total", Help: "[ALPHA] Resizes that cannot be done on this node"}, []string{"reason_detail"}),
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_pod_deferred_accepted_resizes_total", Help: "[ALPHA] Resizes that were done after they had waited for room"},
			[]string{"retry_trigger"}),
	}
	r.MustRegister(m.asked, m.took, m.infeasible, m.accepted)
	return m
}

// requested counts what containers of a pod are to have that they did not ask for before.
func (m resizeMetrics) requested(was, is *corev1.Pod) {
	podspec.EachContainer(is, func(c *corev1.Container, kind podspec.ContainerKind) {
		old, _ := podspec.FindContainer(was, c.Name)
		if old == nil || kind == podspec.EphemeralContainer {
			return
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			for requirement, lists := range map[string][2]corev1.ResourceList{
				"requests": {old.Resources.Requests, c.Resources.Requests}, "limits": {old.Resources.Limits, c.Resources.Limits},
			} {
				if op := resizeOperation(lists[0][name], lists[1][name]); op != "" {
					m.asked.WithLabelValues(string(name), requirement, op).Inc()
				}
			}
		}
	})
}

// resizeOperation is what is done to a resource; "" if nothing is. Pure.
func resizeOperation(was, is resource.Quantity) string {
	switch d := is.Cmp(was); {
	case d == 0:
		return ""
	case was.IsZero():
		return "add"
	case is.IsZero():
		return "remove"
	case d < 0:
		return "decrease"
	}
	return "increase"
}

func (m resizeMetrics) done(took time.Duration, err error) {
	m.took.WithLabelValues(strconv.FormatBool(err == nil)).Observe(float64(took.Milliseconds()))
}

// What lets a resize that waited for room look again, as it is counted.
const (
	resizeUpdated  = "pod_updated"
	resizeRemoved  = "pods_removed"
	resizePeriodic = "periodic_retry"
)

// acceptedResize counts one that had waited as before says.
func (w *worker) acceptedResize(before *resizeClaim, removed bool) {
	trigger := resizePeriodic
	switch {
	case before == nil:
		return
	case before.pod.Generation != w.desired.Generation:
		trigger = resizeUpdated
	case removed:
		trigger = resizeRemoved
	}
	w.k.metrics.resizes.accepted.WithLabelValues(trigger).Inc()
}

// infeasibleResize counts one that cannot be done, once: it is looked at again and again.
func (w *worker) infeasibleResize(detail string) {
	if w.infeasible == w.desired.Generation {
		return
	}
	w.infeasible = w.desired.Generation
	w.k.metrics.resizes.infeasible.WithLabelValues(detail).Inc()
}
