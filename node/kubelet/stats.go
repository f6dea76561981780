package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Summary asks the runtime and the kernel what everything uses at this moment.
func (h host) Summary(ctx context.Context, only bool) (any, error) { return h.k.summary(ctx, only) }

func (k *Kubelet) summary(ctx context.Context, only bool) (*stats.Summary, error) {
	res, err := k.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("container statistics: %w", err)
	}
	byPod := map[string][]*cri.ContainerStats{}
	for _, s := range res.Stats {
		uid := s.Attributes.GetLabels()[labelPodUID]
		byPod[uid] = append(byPod[uid], s)
	}
	now := metav1.Now()
	out := &stats.Summary{Node: k.nodeStats(now, only), Pods: []stats.PodStats{}}
	for _, w := range k.all() {
		s := w.shown.Load()
		if s.ended || s.view == nil || len(s.view.running()) == 0 {
			continue
		}
		p := stats.PodStats{
			PodRef:     stats.PodReference{Name: s.pod.Name, Namespace: s.pod.Namespace, UID: string(s.pod.UID)},
			Containers: []stats.ContainerStats{},
		}
		if s.status.StartTime != nil {
			p.StartTime = *s.status.StartTime
		}
		for _, c := range byPod[string(s.pod.UID)] {
			p.Containers = append(p.Containers, containerStats(c, s.view, only))
		}
		k.podUsage(&p, s.pod, now)
		if !only {
			p.Network = k.podNetwork(ctx, s)
			p.EphemeralStorage = podStorage(&p, filepath.Join(k.cfg.RootDir, "pods", string(s.pod.UID)), now)
		}
		out.Pods = append(out.Pods, p)
	}
	return out, nil
}

func u64(v *cri.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func containerStats(c *cri.ContainerStats, v *view, only bool) stats.ContainerStats {
	s := stats.ContainerStats{Name: c.Attributes.GetMetadata().GetName()}
	if o := v.byID(c.Attributes.GetId()); o != nil {
		s.StartTime = metav1.NewTime(o.started())
	}
	if c.Cpu != nil {
		s.CPU = &stats.CPUStats{Time: metav1.Unix(0, c.Cpu.Timestamp), UsageCoreNanoSeconds: u64(c.Cpu.UsageCoreNanoSeconds), UsageNanoCores: u64(c.Cpu.UsageNanoCores)}
	}
	if m := c.Memory; m != nil {
		s.Memory = &stats.MemoryStats{
			Time: metav1.Unix(0, m.Timestamp), WorkingSetBytes: u64(m.WorkingSetBytes), AvailableBytes: u64(m.AvailableBytes),
			UsageBytes: u64(m.UsageBytes), RSSBytes: u64(m.RssBytes), PageFaults: u64(m.PageFaults), MajorPageFaults: u64(m.MajorPageFaults),
		}
	}
	if f := c.WritableLayer; f != nil && !only {
		s.Rootfs = &stats.FsStats{Time: metav1.Unix(0, f.Timestamp), UsedBytes: u64(f.UsedBytes), InodesUsed: u64(f.InodesUsed)}
	}
	if !only {
		if o := v.byID(c.Attributes.GetId()); o != nil && o.LogPath != "" {
			used := dirSize(filepath.Dir(o.LogPath))
			s.Logs = &stats.FsStats{Time: metav1.Now(), UsedBytes: &used}
		}
	}
	return s
}

// podUsage is what the pod's own group used, else the sum of its containers.
func (k *Kubelet) podUsage(p *stats.PodStats, pod *corev1.Pod, now metav1.Time) {
	group := k.podCgroup(pod)
	if group != "" {
		if used, set, err := k.cgroups.Memory(group); err == nil {
			p.Memory = &stats.MemoryStats{Time: now, UsageBytes: &used, WorkingSetBytes: &set}
		}
		if cpu, err := k.cgroups.CPU(group); err == nil {
			p.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &cpu}
		}
	}
	var cores uint64
	known := false
	for _, c := range p.Containers {
		if c.CPU != nil && c.CPU.UsageNanoCores != nil {
			cores, known = cores+*c.CPU.UsageNanoCores, true
		}
	}
	if p.CPU != nil && known {
		p.CPU.UsageNanoCores = &cores
	}
}

func (k *Kubelet) podNetwork(ctx context.Context, s *shown) *stats.NetworkStats {
	sb, ok := s.view.readySandbox()
	if !ok || s.pod.Spec.HostNetwork {
		return nil
	}
	res, err := k.runtime.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: sb.Id})
	if err != nil {
		return nil
	}
	n := res.Stats.GetLinux().GetNetwork()
	if n == nil || n.DefaultInterface == nil {
		return nil
	}
	one := func(i *cri.NetworkInterfaceUsage) stats.InterfaceStats {
		return stats.InterfaceStats{Name: i.Name, RxBytes: u64(i.RxBytes), RxErrors: u64(i.RxErrors), TxBytes: u64(i.TxBytes), TxErrors: u64(i.TxErrors)}
	}
	out := &stats.NetworkStats{Time: metav1.Unix(0, n.Timestamp), InterfaceStats: one(n.DefaultInterface)}
	out.Interfaces = append(out.Interfaces, out.InterfaceStats)
	for _, i := range n.Interfaces {
		out.Interfaces = append(out.Interfaces, one(i))
	}
	return out
}

func podStorage(p *stats.PodStats, dir string, now metav1.Time) *stats.FsStats {
	used := dirSize(dir)
	for _, c := range p.Containers {
		for _, f := range []*stats.FsStats{c.Rootfs, c.Logs} {
			if f != nil && f.UsedBytes != nil {
				used += *f.UsedBytes
			}
		}
	}
	return &stats.FsStats{Time: now, UsedBytes: &used}
}

// dirSize is what a directory takes up on its own file system.
func dirSize(dir string) (size uint64) {
	var root syscall.Stat_t
	if syscall.Lstat(dir, &root) != nil {
		return 0
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		var st syscall.Stat_t
		if syscall.Lstat(path, &st) != nil {
			return nil
		}
		if st.Dev != root.Dev {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		size += uint64(st.Blocks) * 512
		return nil
	})
	return size
}

func (k *Kubelet) nodeStats(now metav1.Time, only bool) stats.NodeStats {
	n := stats.NodeStats{NodeName: k.cfg.NodeName, StartTime: metav1.NewTime(bootTime())}
	if used, err := nodeCPU(); err == nil {
		n.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &used, UsageNanoCores: k.cpuRate.rate(used, now.Time)}
	}
	if info, err := meminfo(); err == nil {
		free := uint64(info["MemAvailable"])
		used := uint64(max(info["MemTotal"]-info["MemFree"], 0))
		set := uint64(max(info["MemTotal"]-info["MemFree"]-info["Inactive(file)"], 0))
		rss := uint64(info["AnonPages"])
		n.Memory = &stats.MemoryStats{Time: now, AvailableBytes: &free, UsageBytes: &used, WorkingSetBytes: &set, RSSBytes: &rss}
	}
	if only {
		return n
	}
	if d, err := statDisk(k.cfg.RootDir); err == nil {
		n.Fs = fsStats(d, now)
	}
	if d, err := statDisk(k.imageDir()); err == nil {
		n.Runtime = &stats.RuntimeStats{ImageFs: fsStats(d, now), ContainerFs: fsStats(d, now)}
	}
	return n
}

func fsStats(d disk, now metav1.Time) *stats.FsStats {
	used, inodes := d.size-d.free, d.inodes-d.inodesFree
	return &stats.FsStats{Time: now, AvailableBytes: &d.free, CapacityBytes: &d.size, UsedBytes: &used, Inodes: &d.inodes, InodesFree: &d.inodesFree, InodesUsed: &inodes}
}

func bootTime() time.Time {
	for line := range strings.Lines(readTrim("/proc/stat")) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "btime" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return time.Unix(n, 0)
		}
	}
	return time.Time{}
}

// nodeCPU is the processor time the machine has used, nanoseconds.
func nodeCPU() (uint64, error) {
	line, _, _ := strings.Cut(readTrim("/proc/stat"), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("unknown format of /proc/stat")
	}
	var ticks uint64
	for i, s := range f[1:9] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 { // idle and waiting for disks
			ticks += n
		}
	}
	return ticks * 10_000_000, nil
}

// resourceCollector is /metrics/resource, which metrics servers scrape.
type resourceCollector struct{ k *Kubelet }

var (
	nodeCPUDesc      = prometheus.NewDesc("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", nil, nil)
	nodeMemDesc      = prometheus.NewDesc("node_memory_working_set_bytes", "Current working set of the node in bytes", nil, nil)
	containerCPUDesc = prometheus.NewDesc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", []string{"container", "pod", "namespace"}, nil)
	containerMemDesc = prometheus.NewDesc("container_memory_working_set_bytes", "Current working set of the container in bytes", []string{"container", "pod", "namespace"}, nil)
	startDesc        = prometheus.NewDesc("container_start_time_seconds", "Start time of the container since unix epoch in seconds", []string{"container", "pod", "namespace"}, nil)
	podCPUDesc       = prometheus.NewDesc("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", []string{"pod", "namespace"}, nil)
	podMemDesc       = prometheus.NewDesc("pod_memory_working_set_bytes", "Current working set of the pod in bytes", []string{"pod", "namespace"}, nil)
	scrapeErrDesc    = prometheus.NewDesc("scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, nil)
	resourceErrDesc  = prometheus.NewDesc("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, nil)
)

func (c resourceCollector) Describe(ch chan<- *prometheus.Desc) { ch <- scrapeErrDesc }

func (c resourceCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.k.ctx, 10*time.Second)
	defer cancel()
	s, err := c.k.summary(ctx, true)
	failed := 0.0
	if err != nil {
		failed = 1
	}
	ch <- prometheus.MustNewConstMetric(scrapeErrDesc, prometheus.GaugeValue, failed)
	ch <- prometheus.MustNewConstMetric(resourceErrDesc, prometheus.GaugeValue, failed)
	if err != nil {
		return
	}
	cpu := func(d *prometheus.Desc, v *stats.CPUStats, labels ...string) {
		if v != nil && v.UsageCoreNanoSeconds != nil {
			ch <- prometheus.NewMetricWithTimestamp(v.Time.Time, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(*v.UsageCoreNanoSeconds)/1e9, labels...))
		}
	}
	mem := func(d *prometheus.Desc, v *stats.MemoryStats, labels ...string) {
		if v != nil && v.WorkingSetBytes != nil {
			ch <- prometheus.NewMetricWithTimestamp(v.Time.Time, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(*v.WorkingSetBytes), labels...))
		}
	}
	cpu(nodeCPUDesc, s.Node.CPU)
	mem(nodeMemDesc, s.Node.Memory)
	for _, p := range s.Pods {
		for _, ct := range p.Containers {
			cpu(containerCPUDesc, ct.CPU, ct.Name, p.PodRef.Name, p.PodRef.Namespace)
			mem(containerMemDesc, ct.Memory, ct.Name, p.PodRef.Name, p.PodRef.Namespace)
			if !ct.StartTime.IsZero() {
				ch <- prometheus.MustNewConstMetric(startDesc, prometheus.GaugeValue, float64(ct.StartTime.UnixNano())/1e9, ct.Name, p.PodRef.Name, p.PodRef.Namespace)
			}
		}
		cpu(podCPUDesc, p.CPU, p.PodRef.Name, p.PodRef.Namespace)
		mem(podMemDesc, p.Memory, p.PodRef.Name, p.PodRef.Namespace)
	}
}

func (h host) Metrics() map[string]http.Handler {
	k := h.k
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_running_pods", Help: "Number of pods that have a running pod sandbox"}, func() float64 {
			n := 0
			for _, w := range k.all() {
				if s := w.shown.Load(); s.view != nil {
					if _, ok := s.view.readySandbox(); ok {
						n++
					}
				}
			}
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_running_containers", Help: "Number of containers currently running"}, func() float64 {
			n := 0
			for _, w := range k.all() {
				if s := w.shown.Load(); s.view != nil {
					n += len(s.view.running())
				}
			}
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "The node's name. The count is always 1.", ConstLabels: prometheus.Labels{"node": k.cfg.NodeName}}, func() float64 { return 1 }),
	)
	res := prometheus.NewRegistry()
	res.MustRegister(resourceCollector{k})
	h1, h2 := promhttp.HandlerFor(own, promhttp.HandlerOpts{}), promhttp.HandlerFor(res, promhttp.HandlerOpts{})
	return map[string]http.Handler{"/metrics": h1, "/metrics/resource": h2, "/metrics/cadvisor": h2, "/metrics/probes": h1}
}
