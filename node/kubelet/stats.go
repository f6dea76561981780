package kubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/runtimestate"
)

// Summary asks the runtime and the kernel what everything uses at this moment.
func (h host) Summary(ctx context.Context, only bool) (any, error) {
	if only {
		return h.k.usage(ctx)
	}
	return h.k.summary(ctx, false)
}

// A measurement is what everything used at one time. It serves all who ask within
// a second: several metrics servers cost what one does.
type measurement struct {
	mu  sync.Mutex
	at  time.Time
	all *stats.Summary
}

const measurementLife = time.Second

// usage is the processor time and the memory of everything. Nobody may change it.
func (k *Kubelet) usage(ctx context.Context) (*stats.Summary, error) {
	m := &k.measured
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all != nil && time.Since(m.at) < measurementLife {
		return m.all, nil
	}
	all, err := k.summary(ctx, true)
	m.all, m.at = all, time.Now()
	return all, err
}

func (k *Kubelet) summary(ctx context.Context, only bool) (*stats.Summary, error) {
	byPod, err := k.containerStats(ctx, only)
	if err != nil {
		return nil, err
	}
	k.storage.mu.Lock()
	measured := metav1.NewTime(k.storage.at)
	k.storage.mu.Unlock()
	out := &stats.Summary{Node: k.nodeStats(metav1.Now(), only), Pods: []stats.PodStats{}}
	var reader *cgroup.Reader
	var nodeDisk, layerDisk *disk
	if !only {
		reader = k.cgroups.NewReader()
		nodeDisk, layerDisk = k.podDisks()
		out.Node.SystemContainers = k.systemContainers(reader)
	}
	for _, w := range k.all() {
		s := w.shown.Load()
		if s.ended || s.observed == nil || len(s.observed.Running()) == 0 {
			continue
		}
		p := stats.PodStats{
			PodRef:     stats.PodReference{Name: s.pod.Name, Namespace: s.pod.Namespace, UID: string(s.pod.UID)},
			Containers: []stats.ContainerStats{},
		}
		if s.status.StartTime != nil {
			p.StartTime = *s.status.StartTime
		}
		used := k.storageOf(s.pod.UID)
		for _, c := range newest(byPod[s.pod.UID]) {
			if of := s.observed.ByID(c.Attributes.GetId()); of == nil || !of.Running() {
				continue // one that has ended uses nothing
			}
			one := containerStats(c, s.observed, used, measured, only)
			group := k.podCgroup(s.pod)
			if group != "" {
				group = cgroup.ContainerGroup(group, k.runtimeName(), c.Attributes.GetId())
			}
			noneSwapped(&one, out.Node.Swap)
			k.swapped(&one, group)
			if !only && group != "" && one.CPU != nil && one.CPU.PSI == nil {
				one.IO = pressures(one.CPU, one.Memory, func(of string) (cgroup.Pressure, bool) { return k.cgroups.Pressure(group, of) })
			}
			p.Containers = append(p.Containers, one)
		}
		k.podUsage(&p, s.pod, only)
		if !only {
			p.Network = k.podNetwork(ctx, s)
			p.EphemeralStorage = usedStats(used.total(true, true), measured)
			p.VolumeStats = append(volumeStats(used, measured), k.mountedStats(s.pod.UID)...)
			k.complete(&p, k.podCgroup(s.pod), reader, nodeDisk, layerDisk)
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

// left is how much memory a container may still take; nil where there is no limit,
// of which runtimes say 0.
func left(v *cri.UInt64Value) *uint64 {
	if v.GetValue() == 0 {
		return nil
	}
	return &v.Value
}

// containerStats are the runtime's figures by pod. Unless only is set the
// storage of pods is measured too, if that is due.
func (k *Kubelet) containerStats(ctx context.Context, only bool) (map[types.UID][]*cri.ContainerStats, error) {
	k.storage.mu.Lock()
	due := time.Since(k.storage.at) > measurePeriod
	k.storage.mu.Unlock()
	if due && !only {
		k.measure(ctx)
		if fresh := k.storage.fresh(); fresh != nil {
			return fresh, nil
		}
	}
	res, err := k.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("container statistics: %w", err)
	}
	byPod := map[types.UID][]*cri.ContainerStats{}
	for _, s := range res.Stats {
		uid := types.UID(s.Attributes.GetLabels()[crilabels.PodUID])
		byPod[uid] = append(byPod[uid], s)
	}
	return byPod, nil
}

// newest leaves out what there was of a container before its restart.
func newest(all []*cri.ContainerStats) (out []*cri.ContainerStats) {
	at := map[string]int{}
	for _, s := range all {
		m := s.Attributes.GetMetadata()
		i, known := at[m.GetName()]
		switch {
		case !known:
			at[m.GetName()] = len(out)
			out = append(out, s)
		case m.GetAttempt() > out[i].Attributes.GetMetadata().GetAttempt():
			out[i] = s
		}
	}
	return out
}

func containerStats(c *cri.ContainerStats, v *runtimestate.Pod, used podStorage, measured metav1.Time, only bool) stats.ContainerStats {
	s := stats.ContainerStats{Name: c.Attributes.GetMetadata().GetName()}
	if o := v.ByID(c.Attributes.GetId()); o != nil {
		s.StartTime = metav1.NewTime(o.Started())
	}
	if c.Cpu != nil {
		s.CPU = &stats.CPUStats{Time: metav1.Unix(0, c.Cpu.Timestamp), UsageCoreNanoSeconds: u64(c.Cpu.UsageCoreNanoSeconds), UsageNanoCores: u64(c.Cpu.UsageNanoCores)}
	}
	if m := c.Memory; m != nil {
		s.Memory = &stats.MemoryStats{
			Time: metav1.Unix(0, m.Timestamp), WorkingSetBytes: u64(m.WorkingSetBytes), AvailableBytes: left(m.AvailableBytes),
			UsageBytes: u64(m.UsageBytes), RSSBytes: u64(m.RssBytes), PageFaults: u64(m.PageFaults), MajorPageFaults: u64(m.MajorPageFaults),
		}
	}
	if w := c.Swap; w != nil {
		s.Swap = &stats.SwapStats{Time: metav1.Unix(0, w.Timestamp), SwapAvailableBytes: u64(w.SwapAvailableBytes), SwapUsageBytes: u64(w.SwapUsageBytes)}
	}
	if f := c.WritableLayer; f != nil && !only {
		s.Rootfs = &stats.FsStats{Time: metav1.Unix(0, f.Timestamp), UsedBytes: u64(f.UsedBytes), InodesUsed: u64(f.InodesUsed)}
	}
	if !only {
		criPressure(&s, c)
		s.Logs = usedStats(used.logs[s.Name], measured)
	}
	return s
}

// swapped says how much of a container is in swap, where its runtime does not and the kernel
// does.
func (k *Kubelet) swapped(c *stats.ContainerStats, group string) {
	if c.Swap != nil || group == "" {
		return
	}
	if used, limit, ok := k.cgroups.Swap(group); ok {
		c.Swap = groupSwap(cgroup.MemoryStats{Swap: used, SwapLimit: limit}, metav1.Now())
	}
}

// noneSwapped says that a container uses no swap where its runtime says nothing and the
// node has none: runtimes leave out what the kernel does not count by control group.
func noneSwapped(c *stats.ContainerStats, node *stats.SwapStats) {
	if c.Swap == nil && c.Memory != nil && node != nil && *node.SwapUsageBytes+*node.SwapAvailableBytes == 0 {
		c.Swap = &stats.SwapStats{Time: c.Memory.Time, SwapUsageBytes: new(uint64(0))}
	}
}

// podUsage is what the pod's own group used, else the sum of its containers.
// only leaves out what is not processor time and memory.
func (k *Kubelet) podUsage(p *stats.PodStats, pod *corev1.Pod, only bool) {
	group := k.podCgroup(pod)
	if group != "" {
		if used, set, err := k.cgroups.Memory(group); err == nil {
			p.Memory = &stats.MemoryStats{Time: metav1.Now(), UsageBytes: &used, WorkingSetBytes: &set}
		}
		if cpu, err := k.cgroups.CPU(group); err == nil {
			p.CPU = &stats.CPUStats{Time: metav1.Now(), UsageCoreNanoSeconds: &cpu}
		}
		if !only {
			p.IO = pressures(p.CPU, p.Memory, func(of string) (cgroup.Pressure, bool) { return k.cgroups.Pressure(group, of) })
		}
	}
	p.Swap = podSwap(p.Containers)
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
	sb, ok := s.observed.ReadySandbox()
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
		if i.Name == n.DefaultInterface.Name {
			continue // runtimes list the default one among all, or do not
		}
		out.Interfaces = append(out.Interfaces, one(i))
	}
	return out
}

func usedStats(u podfile.Usage, now metav1.Time) *stats.FsStats {
	return &stats.FsStats{Time: now, UsedBytes: &u.Bytes, InodesUsed: &u.Inodes}
}

func volumeStats(used podStorage, now metav1.Time) (out []stats.VolumeStats) {
	for _, name := range slices.Sorted(maps.Keys(used.volumes)) {
		out = append(out, stats.VolumeStats{Name: name, FsStats: *usedStats(used.volumes[name], now)})
	}
	return out
}

func (k *Kubelet) nodeStats(now metav1.Time, only bool) stats.NodeStats {
	n := stats.NodeStats{NodeName: k.cfg.NodeName, StartTime: metav1.NewTime(bootTime())}
	if used, err := nodeCPU(); err == nil {
		n.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &used, UsageNanoCores: k.cpuRate.rate(used, now.Time)}
	}
	if info, err := meminfo(); err == nil {
		used := uint64(max(info["MemTotal"]-info["MemFree"], 0))
		set := uint64(max(info["MemTotal"]-info["MemFree"]-info["Inactive(file)"], 0))
		free := uint64(availableMemory(info))
		rss := uint64(info["AnonPages"])
		n.Memory = &stats.MemoryStats{Time: now, AvailableBytes: &free, UsageBytes: &used, WorkingSetBytes: &set, RSSBytes: &rss}
	}
	n.Swap = nodeSwap(now)
	if only {
		return n
	}
	if n.Memory != nil {
		n.Memory.PageFaults, n.Memory.MajorPageFaults = nodeFaults(readTrim("/proc/vmstat"))
	}
	n.IO = pressures(n.CPU, n.Memory, cgroup.NodePressure)
	n.Rlimit = rlimit(readTrim("/proc/sys/kernel/pid_max"), readTrim("/proc/sys/kernel/threads-max"), readTrim("/proc/loadavg"), now)
	n.Network = nodeNetwork([]byte(readTrim("/proc/self/net/dev")), readTrim("/proc/self/net/route"), now)
	if d, err := k.statDisk(k.cfg.RootDir); err == nil {
		n.Fs = fsStats(d, now)
	}
	if d, err := k.statDisk(k.imageDir()); err == nil {
		n.Runtime = &stats.RuntimeStats{ImageFs: fsStats(d, now)}
		if d, err := k.statDisk(k.containerDir()); err == nil {
			n.Runtime.ContainerFs = fsStats(d, now)
		}
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
