package cadvisor

import "slices"

// A family is one metric: its name, its labels beside the six of every group, and
// what a group has of it.
type family struct {
	name, kind, help string
	labels           []string
	// timeless is what carries no time: what a group is, not what it did.
	timeless bool
	each     func(s *sample, put put)
}

// put takes a value and the text of its own labels.
type put func(v float64, labels string)

const (
	gauge   = "gauge"
	counter = "counter"
)

// families are all of them, those of a kind together, in the order in which they
// are written.
var families = slices.Concat(generalFamilies, cpuFamilies, memoryFamilies, processFamilies, diskFamilies, filesystemFamilies,
	networkFamilies, pressureFamilies, specFamilies)

// one is a family with one value for each group.
func one(name, kind, help string, v func(s *sample) float64) family {
	return family{name: name, kind: kind, help: help, each: func(s *sample, put put) { put(v(s), "") }}
}

// some is one that not every group has.
func some(name, kind, help string, v func(s *sample) (float64, bool)) family {
	return family{name: name, kind: kind, help: help, each: func(s *sample, put put) {
		if v, ok := v(s); ok {
			put(v, "")
		}
	}}
}

var generalFamilies = []family{
	one("container_last_seen", gauge, "When the group was measured, seconds since 1970", func(s *sample) float64 { return float64(s.at.Unix()) }),
	// The health checks of images are not run on Kubernetes: -1 says that there is none.
	one("container_health_state", gauge, "Result of the health check of the image", func(*sample) float64 { return -1 }),
}

// seconds are nanoseconds as metrics have them.
func seconds(ns uint64) float64 { return float64(ns) / 1e9 }

// throttling is counted of groups with a quota.
func throttling(name, help string, v func(s *sample) float64) family {
	return some(name, counter, help, func(s *sample) (float64, bool) { return v(s), s.stats.CPU.Quota != 0 })
}

var cpuFamilies = []family{
	one("container_cpu_user_seconds_total", counter, "CPU time in user mode", func(s *sample) float64 { return seconds(s.stats.CPU.User) }),
	one("container_cpu_system_seconds_total", counter, "CPU time in the kernel", func(s *sample) float64 { return seconds(s.stats.CPU.System) }),
	{name: "container_cpu_usage_seconds_total", kind: counter, help: "CPU time", labels: []string{"cpu"}, each: func(s *sample, put put) {
		if s.stats.CPU.Usage > 0 {
			put(seconds(s.stats.CPU.Usage), `cpu="total"`)
		}
	}},
	throttling("container_cpu_cfs_periods_total", "Periods of the quota that have passed", func(s *sample) float64 { return float64(s.stats.CPU.Periods) }),
	throttling("container_cpu_cfs_throttled_periods_total", "Periods in which the quota was used up", func(s *sample) float64 { return float64(s.stats.CPU.ThrottledPeriods) }),
	throttling("container_cpu_cfs_throttled_seconds_total", "Time that tasks were held back by the quota", func(s *sample) float64 { return seconds(s.stats.CPU.Throttled) }),
	throttling("container_cpu_cfs_burst_periods_total", "Periods in which more than the quota was used", func(s *sample) float64 { return float64(s.stats.CPU.BurstPeriods) }),
	throttling("container_cpu_cfs_burst_seconds_total", "CPU time beyond the quota", func(s *sample) float64 { return seconds(s.stats.CPU.Burst) }),
}

// memory is one figure of the memory controller.
func memory(name, kind, help string, v func(m *memoryStats) uint64) family {
	return one(name, kind, help, func(s *sample) float64 { return float64(v(&s.stats.Memory)) })
}

var memoryFamilies = []family{
	memory("container_memory_cache", gauge, "Page cache, bytes", func(m *memoryStats) uint64 { return m.Cache }),
	memory("container_memory_rss", gauge, "Anonymous memory, bytes", func(m *memoryStats) uint64 { return m.RSS }),
	memory("container_memory_kernel_usage", gauge, "Memory of the kernel for the group, bytes", func(m *memoryStats) uint64 { return m.Kernel }),
	memory("container_memory_mapped_file", gauge, "Mapped files, bytes", func(m *memoryStats) uint64 { return m.MappedFile }),
	memory("container_memory_swap", gauge, "Swap in use, bytes", func(m *memoryStats) uint64 { return m.Swap }),
	memory("container_memory_failcnt", counter, "How often the limit was hit", func(m *memoryStats) uint64 { return m.Failures }),
	memory("container_memory_usage_bytes", gauge, "Memory in use, of whatever age", func(m *memoryStats) uint64 { return m.Usage }),
	memory("container_memory_max_usage_bytes", gauge, "Most memory that was in use", func(m *memoryStats) uint64 { return m.MaxUsage }),
	memory("container_memory_working_set_bytes", gauge, "Memory in use without inactive files", func(m *memoryStats) uint64 { return m.WorkingSet }),
	memory("container_memory_total_active_file_bytes", gauge, "Active page cache", func(m *memoryStats) uint64 { return m.ActiveFile }),
	memory("container_memory_total_inactive_file_bytes", gauge, "Inactive page cache", func(m *memoryStats) uint64 { return m.InactiveFile }),
	{name: "container_memory_failures_total", kind: counter, help: "Page faults", labels: []string{"failure_type", "scope"}, each: func(s *sample, put put) {
		// The kernel counts for the whole subtree; no container has another within.
		m := &s.stats.Memory
		put(float64(m.Faults), `failure_type="pgfault",scope="container"`)
		put(float64(m.MajorFaults), `failure_type="pgmajfault",scope="container"`)
		put(float64(m.Faults), `failure_type="pgfault",scope="hierarchy"`)
		put(float64(m.MajorFaults), `failure_type="pgmajfault",scope="hierarchy"`)
	}},
	memory("container_oom_events_total", counter, "Tasks that were killed for want of memory", func(m *memoryStats) uint64 { return m.OOMKills }),
}

// known leaves out a figure that is less than zero.
func known(n int64) (float64, bool) { return float64(n), n >= 0 }

var processFamilies = []family{
	some("container_processes", gauge, "Processes in the group", func(s *sample) (float64, bool) { return known(s.processes) }),
	some("container_file_descriptors", gauge, "Descriptors that are open", func(s *sample) (float64, bool) { return known(s.descriptors) }),
	some("container_sockets", gauge, "Sockets that are open", func(s *sample) (float64, bool) { return known(s.sockets) }),
	one("container_threads_max", gauge, "Most threads there may be, 0 any number", func(s *sample) float64 { return float64(s.stats.Pids.Max) }),
	one("container_threads", gauge, "Threads in the group", func(s *sample) float64 { return float64(s.stats.Pids.Current) }),
	{name: "container_ulimits_soft", kind: gauge, help: "Soft limits of the first process, -1 none", labels: []string{"ulimit"}, each: func(s *sample, put put) {
		if s.hasLimits {
			put(float64(s.openFiles), `ulimit="max_open_files"`)
		}
	}},
}

// waits are the two figures of a resource that tasks waited for.
func waits(of int, name, resource string) []family {
	return []family{
		some("container_pressure_"+name+"_stalled_seconds_total", counter, "Time in which all tasks waited for "+resource, func(s *sample) (float64, bool) {
			return seconds(s.pressure[of].Full.Total), s.hasPressure
		}),
		some("container_pressure_"+name+"_waiting_seconds_total", counter, "Time in which some task waited for "+resource, func(s *sample) (float64, bool) {
			return seconds(s.pressure[of].Some.Total), s.hasPressure
		}),
	}
}

var pressureFamilies = slices.Concat(waits(0, "cpu", "a CPU"), waits(1, "memory", "memory"), waits(2, "io", "a disk"))
