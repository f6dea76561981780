package scheduler

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"

	"knarr/internal/run"
)

var (
	podResourceLabels = []string{"namespace", "pod", "node", "scheduler", "priority", "resource", "unit"}
	podRequests       = prometheus.NewDesc("kube_pod_resource_request",
		"[STABLE] What a pod requests of a resource, as the scheduler and kubelets count it", podResourceLabels, nil)
	podLimits = prometheus.NewDesc("kube_pod_resource_limit",
		"[STABLE] What a pod may have at most of a resource, as the scheduler and kubelets count it", podResourceLabels, nil)
)

// PodResources is what upstream serves as /metrics/resources: requests and limits of
// every pod that has not ended. A scheduler that does not lead knows no pods.
func (s *Scheduler) PodResources() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(podResources{func() []any {
		if pods := s.pods.Load(); pods != nil {
			return (*pods).List()
		}
		return nil
	}})
	return r
}

// podResources tell about the pods that list gives.
type podResources struct{ list func() []any }

// Describe implements prometheus.Collector.
func (podResources) Describe(ch chan<- *prometheus.Desc) {
	ch <- podRequests
	ch <- podLimits
}

// Collect implements prometheus.Collector.
func (r podResources) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("scheduler: metrics of resources")
	for _, o := range r.list() {
		p := o.(*corev1.Pod)
		if p.Spec.NodeName != "" && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed) {
			continue
		}
		priority := ""
		if p.Spec.Priority != nil {
			priority = strconv.Itoa(int(*p.Spec.Priority))
		}
		tell := func(d *prometheus.Desc, list corev1.ResourceList) {
			for name, q := range list {
				if q.IsZero() {
					continue
				}
				// Nobody checks what a tenant calls a scheduler: one that cannot be a label must
				// not hide all other pods.
				if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, q.AsApproximateFloat64(),
					p.Namespace, p.Name, p.Spec.NodeName, p.Spec.SchedulerName, priority, string(name), unitOf(name)); err == nil {
					ch <- m
				}
			}
		}
		tell(podRequests, resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}))
		tell(podLimits, resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{}))
	}
}

// unitOf is what a resource is counted in; empty: it is not known.
func unitOf(name corev1.ResourceName) string {
	switch {
	case name == corev1.ResourceCPU:
		return "cores"
	case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return "bytes"
	case strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix):
		return "integer"
	}
	return ""
}

// know has the pods of a term told until forget is called.
func (s *Scheduler) know(pods cache.Indexer) (forget func()) {
	s.pods.Store(&pods)
	return func() { s.pods.Store(nil) }
}
