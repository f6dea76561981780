package cgroup

import (
	"bytes"

	"knarr/internal/kernfs"
)

// stats2 reads a group on the unified hierarchy. The root group has fewer files
// than others; what it lacks is what the machine as a whole has.
func (r *Reader) stats2(dir string, root bool) (s Stats, ok bool) {
	if s.Made, ok = made(dir, "cgroup.events"); !ok {
		return Stats{}, false
	}
	r.cpu2(dir, &s.CPU)
	r.memory2(dir, root, &s.Memory)
	s.IO = r.io2(dir)
	s.Pids.Current = r.Value(dir + "/pids.current")
	s.Pids.Max = unlimitedIsZero(r.Value(dir + "/pids.max"))
	return s, true
}

func (r *Reader) cpu2(dir string, c *CPUStats) {
	c.Known = r.Table(dir+"/cpu.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "usage_usec":
			c.Usage = v * 1000
		case "user_usec":
			c.User = v * 1000
		case "system_usec":
			c.System = v * 1000
		case "nr_periods":
			c.Periods = v
		case "nr_throttled":
			c.ThrottledPeriods = v
		case "throttled_usec":
			c.Throttled = v * 1000
		case "nr_bursts":
			c.BurstPeriods = v
		case "burst_usec":
			c.Burst = v * 1000
		}
	})
	if weight := r.Value(dir + "/cpu.weight"); weight >= 1 && weight <= 10000 {
		c.Shares = 2 + (weight-1)*262142/9999
	}
	quota, rest := kernfs.NextWord(r.File(dir+"/cpu.max", kernfs.Small))
	c.Quota, _ = kernfs.ParseUint(quota) // max is no number: no limit
	period, _ := kernfs.NextWord(rest)
	c.Period, _ = kernfs.ParseUint(period)
}

func (r *Reader) memory2(dir string, root bool, m *MemoryStats) {
	m.Limit, m.Known = r.Number(dir + "/memory.max")
	m.Usage = r.Value(dir + "/memory.current")
	m.MaxUsage = r.Value(dir + "/memory.peak")
	m.Swap = r.Value(dir + "/memory.swap.current")
	m.SwapLimit = r.Value(dir + "/memory.swap.max")
	m.Reservation = r.Value(dir + "/memory.min")
	r.Table(dir+"/memory.stat", func(key []byte, v uint64) {
		switch string(key) {
		case "file":
			m.Cache = v
		case "anon":
			m.RSS = v
		case "kernel":
			m.Kernel = v
		case "file_mapped":
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
	if root {
		m.Usage = m.RSS + m.Cache
	}
	m.WorkingSet = m.Usage - min(m.Usage, m.InactiveFile)
	r.Table(dir+"/memory.events", func(key []byte, v uint64) {
		if string(key) == "max" {
			m.Failures = v
		}
	})
	// Those of the group itself: a pod's group has no processes, and a container's
	// kills are not counted twice.
	r.Table(dir+"/memory.events.local", func(key []byte, v uint64) {
		if string(key) == "oom_kill" {
			m.OOMKills = v
		}
	})
}

// io2 reads lines of a device and words like rbytes=7.
func (r *Reader) io2(dir string) (out []IOCount) {
	for rest := r.File(dir+"/io.stat", longFile); len(rest) > 0; {
		var line []byte
		line, rest = kernfs.NextLine(rest)
		device, tail := kernfs.NextWord(line)
		major, minor, ok := parseDevice(device)
		for ok && len(tail) > 0 {
			var word []byte
			word, tail = kernfs.NextWord(tail)
			key, number, _ := bytes.Cut(word, []byte{'='})
			v, err := kernfs.ParseUint(number)
			if err != nil {
				continue
			}
			switch string(key) {
			case "rbytes":
				ioCount(&out, major, minor, []byte("Read")).Bytes = v
			case "wbytes":
				ioCount(&out, major, minor, []byte("Write")).Bytes = v
			case "rios":
				ioCount(&out, major, minor, []byte("Read")).Count = v
			case "wios":
				ioCount(&out, major, minor, []byte("Write")).Count = v
			}
		}
	}
	return out
}
