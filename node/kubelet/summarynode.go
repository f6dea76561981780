package kubelet

import (
	"path"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/node/kubelet/cadvisor"
	"knarr/node/kubelet/cgroup"
)

// systemGroups are the rates of the groups beside pods'.
type systemGroups struct{ kubelet, pods cpuRate }

// systemContainers are what this process's group and all pods together use. The
// runtime in this process has no group of its own. One of the root group is not
// told: it is the node's.
func (k *Kubelet) systemContainers(r *cgroup.Reader) (out []stats.ContainerStats) {
	own := ownCgroup(readTrim("/proc/self/cgroup"))
	pods := ""
	if parent := k.cgroupParent(); parent != "-" {
		pods = path.Join("/", parent)
	}
	for _, g := range []struct {
		name, group string
		started     time.Time
		rate        *cpuRate
	}{
		{stats.SystemContainerKubelet, own, k.began, &k.system.kubelet},
		{stats.SystemContainerPods, pods, time.Time{}, &k.system.pods},
	} {
		if g.group == "" || g.group == "/" {
			continue
		}
		s, ok := r.Stats(g.group)
		if !ok {
			continue
		}
		if g.started.IsZero() {
			g.started = s.Made
		}
		now := metav1.Now()
		c := stats.ContainerStats{Name: g.name, StartTime: metav1.NewTime(g.started), Swap: groupSwap(s.Memory, now)}
		c.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &s.CPU.Usage, UsageNanoCores: g.rate.rate(s.CPU.Usage, now.Time)}
		c.Memory = groupMemory(s.Memory, now)
		c.IO = pressures(c.CPU, c.Memory, func(of string) (cgroup.Pressure, bool) { return k.cgroups.Pressure(g.group, of) })
		out = append(out, c)
	}
	return out
}

// groupMemory is what a group uses, and what is left of its limit.
func groupMemory(m cgroup.MemoryStats, now metav1.Time) *stats.MemoryStats {
	out := &stats.MemoryStats{
		Time: now, UsageBytes: &m.Usage, WorkingSetBytes: &m.WorkingSet, RSSBytes: &m.RSS, PageFaults: &m.Faults, MajorPageFaults: &m.MajorFaults,
	}
	if m.Limit > 0 && m.Limit < 1<<62 {
		left := m.Limit - min(m.WorkingSet, m.Limit)
		out.AvailableBytes = &left
	}
	return out
}

func groupSwap(m cgroup.MemoryStats, now metav1.Time) *stats.SwapStats {
	out := &stats.SwapStats{Time: now, SwapUsageBytes: &m.Swap}
	if m.SwapLimit < 1<<62 {
		left := m.SwapLimit - min(m.Swap, m.SwapLimit)
		out.SwapAvailableBytes = &left
	}
	return out
}

// rlimit is how many processes the node may have, and has.
func rlimit(pidMax, threadsMax, loadavg string, now metav1.Time) *stats.RlimitStats {
	out := &stats.RlimitStats{Time: now}
	for _, text := range []string{pidMax, threadsMax} {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && (out.MaxPID == nil || n < *out.MaxPID) {
			out.MaxPID = &n
		}
	}
	if f := strings.Fields(loadavg); len(f) >= 5 {
		_, all, _ := strings.Cut(f[3], "/")
		if n, err := strconv.ParseInt(all, 10, 64); err == nil {
			out.NumOfRunningProcesses = &n
		}
	}
	return out
}

// nodeNetwork is what went over the node's interfaces: all of them, and first the
// one with the default route.
func nodeNetwork(dev []byte, routes string, now metav1.Time) *stats.NetworkStats {
	out := &stats.NetworkStats{Time: now}
	first := defaultInterface(routes)
	for _, i := range cadvisor.Interfaces(dev) {
		s := stats.InterfaceStats{Name: i.Name, RxBytes: &i.Receive[0], RxErrors: &i.Receive[2], TxBytes: &i.Transmit[0], TxErrors: &i.Transmit[2]}
		out.Interfaces = append(out.Interfaces, s)
		if i.Name == first || out.Name == "" && first == "" {
			out.InterfaceStats = s
		}
	}
	if len(out.Interfaces) == 0 {
		return nil
	}
	return out
}

// defaultInterface reads /proc/net/route: the interface of the route to 0.0.0.0/0.
func defaultInterface(routes string) string {
	for line := range strings.Lines(routes) {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

// onDisk adds to what is used how large the disk is that it is on.
func onDisk(f *stats.FsStats, d *disk) *stats.FsStats {
	if f != nil && d != nil {
		f.AvailableBytes, f.CapacityBytes, f.Inodes, f.InodesFree = &d.free, &d.size, &d.inodes, &d.inodesFree
	}
	return f
}

// podDisks are the two that pods write to; nil is one that did not answer.
func (k *Kubelet) podDisks() (node, containers *disk) {
	if d, err := k.statDisk(k.cfg.RootDir); err == nil {
		node = &d
	}
	if d, err := k.statDisk(k.containerDir()); err == nil {
		containers = &d
	}
	return node, containers
}

// complete adds to a pod's statistics what takes more than a look at its usage: what
// its group and the disks it is on say.
func (k *Kubelet) complete(p *stats.PodStats, group string, r *cgroup.Reader, node, containers *disk) {
	onDisk(p.EphemeralStorage, node)
	for i := range p.VolumeStats {
		if v := &p.VolumeStats[i]; v.CapacityBytes == nil {
			onDisk(&v.FsStats, node)
		}
	}
	for i := range p.Containers {
		onDisk(p.Containers[i].Rootfs, containers)
		onDisk(p.Containers[i].Logs, node)
	}
	if group == "" {
		return
	}
	if s, ok := r.Stats(group); ok {
		psi := p.Memory
		p.Memory = groupMemory(s.Memory, metav1.Now())
		if psi != nil {
			p.Memory.PSI = psi.PSI
		}
		if s.Pids.Current > 0 {
			p.ProcessStats = &stats.ProcessStats{ProcessCount: &s.Pids.Current}
		}
	}
}

// nodeFaults reads the page faults of the whole machine from /proc/vmstat.
func nodeFaults(vmstat string) (all, major *uint64) {
	for line := range strings.Lines(vmstat) {
		f := strings.Fields(line)
		if len(f) != 2 || f[0] != "pgfault" && f[0] != "pgmajfault" {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		switch {
		case err != nil:
		case f[0] == "pgfault":
			all = &n
		default:
			major = &n
		}
	}
	return all, major
}
