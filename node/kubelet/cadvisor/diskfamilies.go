package cadvisor

import "knarr/node/kubelet/cgroup"

type memoryStats = cgroup.MemoryStats

var byDevice = []string{"device"}

// operations is a figure of one operation, by device.
func operations(name, help, kind string, v func(c *operation) uint64) family {
	return family{name: name, kind: counter, help: help, labels: byDevice, each: func(s *sample, put put) {
		for i := range s.io {
			if s.io[i].Operation == kind {
				put(float64(v(&s.io[i])), s.io[i].device)
			}
		}
	}}
}

// completed is a figure of one operation, by device. The root group of version 1
// counts none: the devices themselves do.
func completed(name, help, kind string, column int) family {
	f := operations(name, help, kind, func(c *operation) uint64 { return c.Count })
	own := f.each
	f.each = func(s *sample, put put) {
		own(s, put)
		for _, fs := range s.filesystems {
			if !fs.counted {
				put(float64(fs.disk[column]), fs.label)
			}
		}
	}
	return f
}

// disk is a column of /proc/diskstats in the units of the metric.
func disk(name, kind, help string, column int, unit float64) family {
	return family{name: name, kind: kind, help: help, labels: byDevice, each: func(s *sample, put put) {
		for _, fs := range s.filesystems {
			put(float64(fs.disk[column])*unit, fs.label)
		}
	}}
}

const millisecond = 1e-3

var diskFamilies = []family{
	operations("container_fs_reads_bytes_total", "Bytes read", "Read", func(c *operation) uint64 { return c.Bytes }),
	operations("container_fs_writes_bytes_total", "Bytes written", "Write", func(c *operation) uint64 { return c.Bytes }),
	completed("container_fs_reads_total", "Reads completed", "Read", readsCompleted),
	completed("container_fs_writes_total", "Writes completed", "Write", writesCompleted),
	{name: "container_blkio_device_usage_total", kind: counter, help: "Bytes by operation", labels: []string{"device", "major", "minor", "operation"}, each: func(s *sample, put put) {
		for i := range s.io {
			put(float64(s.io[i].Bytes), s.io[i].all)
		}
	}},
	disk("container_fs_sector_reads_total", counter, "Sectors read", sectorsRead, 1),
	disk("container_fs_reads_merged_total", counter, "Reads merged", readsMerged, 1),
	disk("container_fs_read_seconds_total", counter, "Time spent reading", readTime, millisecond),
	disk("container_fs_sector_writes_total", counter, "Sectors written", sectorsWritten, 1),
	disk("container_fs_writes_merged_total", counter, "Writes merged", writesMerged, 1),
	disk("container_fs_write_seconds_total", counter, "Time spent writing", writeTime, millisecond),
	disk("container_fs_io_current", gauge, "Operations in progress", inProgress, 1),
	disk("container_fs_io_time_seconds_total", counter, "Time in which the device was busy", ioTime, millisecond),
	disk("container_fs_io_time_weighted_seconds_total", counter, "Time of all operations together", weightedTime, millisecond),
}

// filesystem is a figure of each file system of the node.
func filesystem(name, help string, v func(f *Filesystem) uint64) family {
	return family{name: name, kind: gauge, help: help, labels: byDevice, each: func(s *sample, put put) {
		for i := range s.filesystems {
			put(float64(v(&s.filesystems[i])), s.filesystems[i].label)
		}
	}}
}

var filesystemFamilies = []family{
	filesystem("container_fs_inodes_free", "Inodes that are free", func(f *Filesystem) uint64 { return f.InodesFree }),
	filesystem("container_fs_inodes_total", "Inodes", func(f *Filesystem) uint64 { return f.Inodes }),
	filesystem("container_fs_limit_bytes", "Size of the file system", func(f *Filesystem) uint64 { return f.Size }),
	filesystem("container_fs_usage_bytes", "Bytes in use", func(f *Filesystem) uint64 { return f.Size - min(f.Free, f.Size) }),
}

// traffic is a figure of each interface: 0 bytes, 1 packets, 2 errors, 3 dropped.
func traffic(name, help string, of func(i *Interface) uint64) family {
	return family{name: name, kind: counter, help: help, labels: []string{"interface"}, each: func(s *sample, put put) {
		for i := range s.interfaces {
			put(float64(of(&s.interfaces[i])), s.interfaces[i].label)
		}
	}}
}

var networkFamilies = []family{
	traffic("container_network_receive_bytes_total", "Bytes received", func(i *Interface) uint64 { return i.Receive[0] }),
	traffic("container_network_receive_packets_total", "Packets received", func(i *Interface) uint64 { return i.Receive[1] }),
	traffic("container_network_receive_errors_total", "Errors while receiving", func(i *Interface) uint64 { return i.Receive[2] }),
	traffic("container_network_receive_packets_dropped_total", "Packets dropped while receiving", func(i *Interface) uint64 { return i.Receive[3] }),
	traffic("container_network_transmit_bytes_total", "Bytes sent", func(i *Interface) uint64 { return i.Transmit[0] }),
	traffic("container_network_transmit_packets_total", "Packets sent", func(i *Interface) uint64 { return i.Transmit[1] }),
	traffic("container_network_transmit_errors_total", "Errors while sending", func(i *Interface) uint64 { return i.Transmit[2] }),
	traffic("container_network_transmit_packets_dropped_total", "Packets dropped while sending", func(i *Interface) uint64 { return i.Transmit[3] }),
}

// spec is what a group is allowed, without a time.
func spec(name, help string, v func(s *sample) (float64, bool)) family {
	f := some(name, gauge, help, v)
	f.timeless = true
	return f
}

// limit is a limit of memory; 0 says that there is none.
func limit(name, help string, v func(m *memoryStats) uint64) family {
	return spec(name, help, func(s *sample) (float64, bool) {
		n := v(&s.stats.Memory)
		if n > 1<<62 {
			n = 0
		}
		return float64(n), s.stats.Memory.Known
	})
}

var specFamilies = []family{
	spec("container_start_time_seconds", "When the group was started, seconds since 1970", func(s *sample) (float64, bool) {
		at := s.Started
		if at.IsZero() {
			at = s.stats.Made
		}
		return float64(at.Unix()), true
	}),
	spec("container_spec_cpu_period", "Period of the quota, microseconds", func(s *sample) (float64, bool) { return float64(s.stats.CPU.Period), s.stats.CPU.Known }),
	spec("container_spec_cpu_quota", "CPU time in a period, microseconds", func(s *sample) (float64, bool) {
		return float64(s.stats.CPU.Quota), s.stats.CPU.Known && s.stats.CPU.Quota != 0
	}),
	spec("container_spec_cpu_shares", "Share of the CPUs", func(s *sample) (float64, bool) { return float64(s.stats.CPU.Shares), s.stats.CPU.Known }),
	limit("container_spec_memory_limit_bytes", "Limit of memory, 0 none", func(m *memoryStats) uint64 { return m.Limit }),
	limit("container_spec_memory_swap_limit_bytes", "Limit of swap, 0 none", func(m *memoryStats) uint64 { return m.SwapLimit }),
	limit("container_spec_memory_reservation_limit_bytes", "Memory that is not taken back, 0 none", func(m *memoryStats) uint64 { return m.Reservation }),
}
