package kubelet

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
	"knarr/node/kubelet/cpumanager"
	"knarr/node/kubelet/topologymanager"
)

// managerMetrics are of what gives containers CPUs and memory and aligns them.
type managerMetrics struct {
	alignments, misalignments           prometheus.Counter
	alignTook                           prometheus.Histogram
	aligned, unaligned                  *prometheus.CounterVec // by scope and boundary
	pinnings, pinningErrors             prometheus.Counter
	memoryPinnings, memoryPinningErrors prometheus.Counter
}

// The boundaries that containers and pods are aligned to.
const (
	physicalCPU = "physical_cpu"
	uncoreCache = "uncore_cache"
	numaNode    = "numa_node"
)

func newManagerMetrics(r prometheus.Registerer) managerMetrics {
	count := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help})
		r.MustRegister(c)
		return c
	}
	counts := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help}, []string{"scope", "boundary"})
		r.MustRegister(v)
		v.WithLabelValues(topologymanager.ContainerScope, numaNode)
		v.WithLabelValues(topologymanager.PodScope, numaNode)
		return v
	}
	m := managerMetrics{
		alignments:    count("kubelet_topology_manager_admission_requests_total", "Pods whose resources were to be aligned"),
		misalignments: count("kubelet_topology_manager_admission_errors_total", "Pods whose resources could not be aligned"),
		alignTook: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_topology_manager_admission_duration_ms",
			Help: "[ALPHA] How long the alignment of a pod's resources took, milliseconds", Buckets: prometheus.ExponentialBuckets(.05, 2, 15)}),
		aligned:             counts("kubelet_container_aligned_compute_resources_count", "Alignments by what was aligned to what"),
		unaligned:           counts("kubelet_container_aligned_compute_resources_failure_count", "Alignments that failed, by what was to be aligned to what"),
		pinnings:            count("kubelet_cpu_manager_pinning_requests_total", "Containers that were to have CPUs for themselves"),
		pinningErrors:       count("kubelet_cpu_manager_pinning_errors_total", "Containers that could not have CPUs for themselves"),
		memoryPinnings:      count("kubelet_memory_manager_pinning_requests_total", "Containers that were to have memory of certain NUMA nodes"),
		memoryPinningErrors: count("kubelet_memory_manager_pinning_errors_total", "Containers that could not have memory of certain NUMA nodes"),
	}
	r.MustRegister(m.alignTook)
	return m
}

// showStatic has the alignments that the policy static counts shown before there are any.
func (m managerMetrics) showStatic() {
	m.aligned.WithLabelValues(topologymanager.ContainerScope, physicalCPU)
	m.aligned.WithLabelValues(topologymanager.ContainerScope, uncoreCache)
	m.unaligned.WithLabelValues(topologymanager.ContainerScope, physicalCPU)
}

var (
	sharedPool = prometheus.NewDesc("kubelet_cpu_manager_shared_pool_size_millicores",
		"[ALPHA] CPUs that no container has for itself and that are not reserved, thousandths", nil, nil)
	exclusiveCPUs = prometheus.NewDesc("kubelet_cpu_manager_exclusive_cpu_allocation_count",
		"[ALPHA] CPUs that containers have for themselves", nil, nil)
	exclusiveByNode = prometheus.NewDesc("kubelet_cpu_manager_allocation_per_numa",
		"[ALPHA] CPUs that containers have for themselves, by NUMA node", []string{numaNode}, nil)
)

// cpuCollector reads who has which CPUs when it is asked.
type cpuCollector struct{ k *Kubelet }

// Describe names what it collects.
func (c cpuCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sharedPool, exclusiveCPUs, exclusiveByNode} {
		out <- d
	}
}

// Collect counts them; with the policy none, as upstream, none.
func (c cpuCollector) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("kubelet: metrics of CPUs")
	var u cpumanager.Use
	if c.k.cpus != nil {
		u = c.k.cpus.Use()
	}
	put := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	put(sharedPool, 1000*u.Free)
	put(exclusiveCPUs, u.Exclusive)
	for node, n := range u.ByNode {
		put(exclusiveByNode, n, strconv.Itoa(node))
	}
}
