package kubelet

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/internal/run"
)

// A resourceCollector is /metrics/resource, which metrics servers scrape: under
// upstream's names, each sample with the time when it was measured.
type resourceCollector struct {
	usage func(context.Context) (*stats.Summary, error)
}

// resourceTime bounds one answer.
const resourceTime = 10 * time.Second

var (
	ofContainer = []string{"container", "pod", "namespace"}
	ofPod       = []string{"pod", "namespace"}

	nodeCPUDesc            = prometheus.NewDesc("node_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the node in core-seconds", nil, nil)
	nodeMemDesc            = prometheus.NewDesc("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes", nil, nil)
	nodeSwapDesc           = prometheus.NewDesc("node_swap_usage_bytes", "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems", nil, nil)
	containerCPUDesc       = prometheus.NewDesc("container_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the container in core-seconds", ofContainer, nil)
	containerMemDesc       = prometheus.NewDesc("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes", ofContainer, nil)
	containerSwapDesc      = prometheus.NewDesc("container_swap_usage_bytes", "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems", ofContainer, nil)
	containerSwapLimitDesc = prometheus.NewDesc("container_swap_limit_bytes", "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems", ofContainer, nil)
	startDesc              = prometheus.NewDesc("container_start_time_seconds", "[STABLE] Start time of the container since unix epoch in seconds", ofContainer, nil)
	podCPUDesc             = prometheus.NewDesc("pod_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", ofPod, nil)
	podMemDesc             = prometheus.NewDesc("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes", ofPod, nil)
	podSwapDesc            = prometheus.NewDesc("pod_swap_usage_bytes", "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems", ofPod, nil)
	resourceErrDesc        = prometheus.NewDesc("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise", nil, nil)
)

// ofResources are all that a resourceCollector may tell.
var ofResources = []*prometheus.Desc{nodeCPUDesc, nodeMemDesc, nodeSwapDesc, containerCPUDesc, containerMemDesc, containerSwapDesc, containerSwapLimitDesc,
	startDesc, podCPUDesc, podMemDesc, podSwapDesc, resourceErrDesc}

func (c resourceCollector) Describe(ch chan<- *prometheus.Desc) { describeAll(ch, ofResources) }

func (c resourceCollector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("kubelet: metrics of resources")
	ctx, cancel := context.WithTimeout(context.Background(), resourceTime)
	defer cancel()
	s, err := c.usage(ctx)
	failed := 0.0
	if err != nil {
		failed = 1
	}
	ch <- prometheus.MustNewConstMetric(resourceErrDesc, prometheus.GaugeValue, failed)
	if err != nil {
		return
	}
	e := emitter{ch}
	e.cpu(nodeCPUDesc, s.Node.CPU)
	e.memory(nodeMemDesc, s.Node.Memory)
	e.swap(nodeSwapDesc, nil, s.Node.Swap)
	for _, p := range s.Pods {
		pod := []string{p.PodRef.Name, p.PodRef.Namespace}
		for _, c := range p.Containers {
			labels := append([]string{c.Name}, pod...)
			if c.StartTime.Unix() > 0 {
				ch <- prometheus.MustNewConstMetric(startDesc, prometheus.GaugeValue, float64(c.StartTime.UnixNano())/1e9, labels...)
			}
			e.cpu(containerCPUDesc, c.CPU, labels...)
			e.memory(containerMemDesc, c.Memory, labels...)
			e.swap(containerSwapDesc, containerSwapLimitDesc, c.Swap, labels...)
		}
		e.cpu(podCPUDesc, p.CPU, pod...)
		e.memory(podMemDesc, p.Memory, pod...)
		e.swap(podSwapDesc, nil, p.Swap, pod...)
	}
}

// An emitter sends what is known.
type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) send(d *prometheus.Desc, kind prometheus.ValueType, at time.Time, value float64, labels ...string) {
	e.ch <- prometheus.NewMetricWithTimestamp(at, prometheus.MustNewConstMetric(d, kind, value, labels...))
}

func (e emitter) cpu(d *prometheus.Desc, v *stats.CPUStats, labels ...string) {
	if v != nil && v.UsageCoreNanoSeconds != nil {
		e.send(d, prometheus.CounterValue, v.Time.Time, float64(*v.UsageCoreNanoSeconds)/1e9, labels...)
	}
}

func (e emitter) memory(d *prometheus.Desc, v *stats.MemoryStats, labels ...string) {
	if v != nil && v.WorkingSetBytes != nil {
		e.send(d, prometheus.GaugeValue, v.Time.Time, float64(*v.WorkingSetBytes), labels...)
	}
}

func (e emitter) swap(usage, limit *prometheus.Desc, v *stats.SwapStats, labels ...string) {
	if v == nil {
		return
	}
	used := 0.0
	if v.SwapUsageBytes != nil {
		used = float64(*v.SwapUsageBytes)
		e.send(usage, prometheus.GaugeValue, v.Time.Time, used, labels...)
	}
	if limit != nil && v.SwapAvailableBytes != nil {
		e.send(limit, prometheus.GaugeValue, v.Time.Time, float64(*v.SwapAvailableBytes)+used, labels...)
	}
}
