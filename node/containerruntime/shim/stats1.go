package shim

import (
	"fmt"

	"github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/errdefs"

	"knarr/internal/kernfs"
)

// stats1 reads of the groups of version 1 what containerd's CRI passes on, but for
// devices. The library reads three times as many files, and each through Go's poller: a node's
// containers are measured ten times a minute. What a kernel does not count is zero.
func stats1(r *kernfs.Reader, paths map[string]string) (*stats.Metrics, error) {
	cpu, memory := paths["cpuacct"], paths["memory"]
	total, counted := r.Number(cpu + "/cpuacct.usage")
	used, limited := r.Number(memory + "/memory.usage_in_bytes")
	if !counted && !limited {
		return nil, fmt.Errorf("control group %q: %w", memory, errdefs.ErrNotFound)
	}
	m := &stats.Metrics{}
	if counted {
		m.CPU = cpu1(r, cpu, paths["cpu"], total)
	}
	if limited {
		m.Memory, m.MemoryOomControl = memory1(r, memory), oom1(r, memory)
		m.Memory.Usage.Usage = used
	}
	if pids, ok := r.Number(paths["pids"] + "/pids.current"); ok {
		m.Pids = &stats.PidsStat{Current: pids, Limit: r.Value(paths["pids"] + "/pids.max")}
	}
	return m, nil
}

// userTick is the unit of cpuacct.stat in nanoseconds.
const userTick = 10_000_000

func cpu1(r *kernfs.Reader, acct, cpu string, total uint64) *stats.CPUStat {
	c := &stats.CPUStat{Usage: &stats.CPUUsage{Total: total}, Throttling: &stats.Throttle{}}
	r.Table(acct+"/cpuacct.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "user":
			c.Usage.User = v * userTick
		case "system":
			c.Usage.Kernel = v * userTick
		}
	})
	r.Table(cpu+"/cpu.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "nr_periods":
			c.Throttling.Periods = v
		case "nr_throttled":
			c.Throttling.ThrottledPeriods = v
		case "throttled_time":
			c.Throttling.ThrottledTime = v
		}
	})
	return c
}

func memory1(r *kernfs.Reader, dir string) *stats.MemoryStat {
	m := &stats.MemoryStat{
		Usage: &stats.MemoryEntry{
			Limit: r.Value(dir + "/memory.limit_in_bytes"), Max: r.Value(dir + "/memory.max_usage_in_bytes"), Failcnt: r.Value(dir + "/memory.failcnt"),
		},
		Swap:   &stats.MemoryEntry{Usage: r.Value(dir + "/memory.memsw.usage_in_bytes")},
		Kernel: &stats.MemoryEntry{Usage: r.Value(dir + "/memory.kmem.usage_in_bytes")},
	}
	r.Table(dir+"/memory.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "cache":
			m.Cache = v
		case "rss":
			m.RSS = v
		case "mapped_file":
			m.MappedFile = v
		case "pgfault":
			m.PgFault = v
		case "pgmajfault":
			m.PgMajFault = v
		case "inactive_file":
			m.InactiveFile = v
		case "active_file":
			m.ActiveFile = v
		case "hierarchical_memory_limit":
			m.HierarchicalMemoryLimit = v
		case "total_cache":
			m.TotalCache = v
		case "total_rss":
			m.TotalRSS = v
		case "total_mapped_file":
			m.TotalMappedFile = v
		case "total_pgfault":
			m.TotalPgFault = v
		case "total_pgmajfault":
			m.TotalPgMajFault = v
		case "total_inactive_file":
			m.TotalInactiveFile = v
		case "total_active_file":
			m.TotalActiveFile = v
		}
	})
	return m
}

func oom1(r *kernfs.Reader, dir string) *stats.MemoryOomControl {
	o := &stats.MemoryOomControl{}
	r.Table(dir+"/memory.oom_control", func(key []byte, v uint64) {
		switch string(key) {
		case "oom_kill_disable":
			o.OomKillDisable = v
		case "under_oom":
			o.UnderOom = v
		case "oom_kill":
			o.OomKill = v
		}
	})
	return o
}
