package cgroup

import (
	"bytes"
	"path/filepath"

	"knarr/internal/kernfs"
)

// tick is the unit of cpuacct.stat in nanoseconds.
const tick = 10_000_000

// stats1 reads a group on version 1's controllers.
func (r *Reader) stats1(path string) (s Stats, ok bool) {
	at := func(controller string) string { return filepath.Join(r.tree.root, controller, path) }
	cpu, memory := at("cpu"), at("memory")
	if s.Made, ok = made(cpu, "cgroup.clone_children"); !ok {
		return Stats{}, false
	}
	r.cpu1(cpu, at("cpuacct"), &s.CPU)
	r.memory1(memory, &s.Memory)
	s.IO = r.io1(at("blkio"))
	s.Pids.Current = r.Value(at("pids") + "/pids.current")
	s.Pids.Max = unlimitedIsZero(r.Value(at("pids") + "/pids.max"))
	return s, true
}

func (r *Reader) cpu1(dir, acct string, c *CPUStats) {
	c.Known = true
	c.Usage = r.Value(acct + "/cpuacct.usage")
	r.Table(acct+"/cpuacct.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "user":
			c.User = v * tick
		case "system":
			c.System = v * tick
		}
	})
	r.Table(dir+"/cpu.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "nr_periods":
			c.Periods = v
		case "nr_throttled":
			c.ThrottledPeriods = v
		case "throttled_time":
			c.Throttled = v
		case "nr_bursts":
			c.BurstPeriods = v
		case "burst_time":
			c.Burst = v
		}
	})
	c.Shares, c.Period = r.Value(dir+"/cpu.shares"), r.Value(dir+"/cpu.cfs_period_us")
	c.Quota = r.Value(dir + "/cpu.cfs_quota_us") // -1 is no number: no limit
}

func (r *Reader) memory1(dir string, m *MemoryStats) {
	m.Usage, m.Known = r.Number(dir + "/memory.usage_in_bytes")
	m.MaxUsage = r.Value(dir + "/memory.max_usage_in_bytes")
	m.Failures = r.Value(dir + "/memory.failcnt")
	m.Kernel = r.Value(dir + "/memory.kmem.usage_in_bytes")
	m.Limit = r.Value(dir + "/memory.limit_in_bytes")
	m.SwapLimit = r.Value(dir + "/memory.memsw.limit_in_bytes")
	m.Reservation = r.Value(dir + "/memory.soft_limit_in_bytes")
	r.Table(dir+"/memory.stat", func(key []byte, v uint64) {
		// Those of descendants too: every kernel counts them for the whole subtree.
		key, total := bytes.CutPrefix(key, []byte("total_"))
		if !total {
			return
		}
		switch string(key) {
		case "cache":
			m.Cache = v
		case "rss":
			m.RSS = v
		case "swap":
			m.Swap = v
		case "mapped_file":
			m.MappedFile = v
		case "pgfault":
			m.Faults = v
		case "pgmajfault":
			m.MajorFaults = v
		case "active_file":
			m.ActiveFile = v
		case "inactive_file":
			m.InactiveFile = v
		}
	})
	m.WorkingSet = m.Usage - min(m.Usage, m.InactiveFile)
	r.Table(dir+"/memory.oom_control", func(key []byte, v uint64) {
		if string(key) == "oom_kill" {
			m.OOMKills = v
		}
	})
}

// io1Layers are where version 1 counts what is done to devices, in the order in which the
// first that counts anything is taken: the scheduler of a device, if it counts by group, then
// the throttle layer, of descendants too where the kernel sums them up. From Linux 6.9 on that
// layer counts nothing on a device before somebody has set a limit of it in some group.
var io1Layers = []struct{ bytes, count string }{
	{"blkio.bfq.io_service_bytes_recursive", "blkio.bfq.io_serviced_recursive"},
	{"blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"},
	{"blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"},
}

// io1 reads lines of a device, an operation and a number.
func (r *Reader) io1(dir string) (out []IOCount) {
	read := func(name string, set func(c *IOCount, v uint64)) {
		for rest := r.File(dir+"/"+name, longFile); len(rest) > 0; {
			var line []byte
			line, rest = kernfs.NextLine(rest)
			device, tail := kernfs.NextWord(line)
			op, tail := kernfs.NextWord(tail)
			word, _ := kernfs.NextWord(tail)
			major, minor, ok := parseDevice(device)
			n, err := kernfs.ParseUint(word)
			if !ok || err != nil {
				continue // such as the sum of all devices at the end
			}
			set(ioCount(&out, major, minor, op), n)
		}
	}
	for _, layer := range io1Layers {
		read(layer.bytes, func(c *IOCount, v uint64) { c.Bytes = v })
		if len(out) > 0 {
			read(layer.count, func(c *IOCount, v uint64) { c.Count = v })
			return out
		}
	}
	return nil
}

// maxIO bounds the devices and operations of one group.
const maxIO = 1024

// ioCount finds or makes the count of an operation on a device.
func ioCount(all *[]IOCount, major, minor uint64, op []byte) *IOCount {
	for i := range *all {
		if c := &(*all)[i]; c.Major == major && c.Minor == minor && c.Operation == string(op) {
			return c
		}
	}
	if len(*all) >= maxIO {
		return &IOCount{}
	}
	*all = append(*all, IOCount{Major: major, Minor: minor, Operation: string(op)})
	return &(*all)[len(*all)-1]
}

func parseDevice(b []byte) (major, minor uint64, ok bool) {
	first, second, found := bytes.Cut(b, []byte{':'})
	major, err := kernfs.ParseUint(first)
	if err != nil || !found {
		return 0, 0, false
	}
	minor, err = kernfs.ParseUint(second)
	return major, minor, err == nil
}

func unlimitedIsZero(n uint64) uint64 {
	if n == 1<<64-1 {
		return 0
	}
	return n
}
