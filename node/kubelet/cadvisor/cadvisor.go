// Package cadvisor is what a kubelet answers at /metrics/cadvisor: what each control
// group of the node uses, under the names that cAdvisor gave it. It reads control
// groups and /proc at the moment somebody asks, keeps one measurement, and writes
// nothing.
package cadvisor

import (
	"context"
	"sync"
	"time"

	"knarr/node/kubelet/cgroup"
)

// A Group is one control group to be measured, and whose it is.
type Group struct {
	// Path is its path below each hierarchy, "/" the root's.
	Path string
	// Name is the id of the container or sandbox, Image its image; empty for
	// groups that are neither.
	Name, Image string
	// Namespace, Pod and Container are whose group it is; empty for the node's own.
	// A pod's group and its sandbox have no Container.
	Namespace, Pod, Container string
	// Network says whether its first process has a network of its own to be shown.
	Network bool
	// Started is when it was started. Default: when the group was made.
	Started time.Time
}

// Machine is what does not change while the node is up.
type Machine struct {
	ID, UUID, BootID, Kernel, OS string
	Cores                        int
	Memory, Swap                 int64
}

// Config is what a Collector is made of.
type Config struct {
	// Tree is where the groups are. Required.
	Tree *cgroup.Tree
	// Groups are those to be measured now. Required.
	Groups func(context.Context) []Group
	// Machine is the node. Required.
	Machine Machine
	// Filesystems are those of the node. Required.
	Filesystems func(context.Context) []Filesystem
	// Proc is where processes are. Default /proc.
	Proc string
	// CPUs is where processors are described. Default /sys/devices/system/cpu.
	CPUs string
}

// A Collector measures at most once a second, however many ask.
type Collector struct {
	cfg      Config
	topology topology
	writers  chan struct{}

	mu      sync.Mutex
	at      time.Time
	samples []sample
}

const (
	// sampleLife is how long one measurement serves all who ask.
	sampleLife = time.Second
	// maxWriters is how many answers are written at once.
	maxWriters = 4
	// processTime is how long descriptors are counted in one measurement; groups
	// that are reached later do not have that figure.
	processTime = 2 * time.Second
)

// New measures nothing yet.
func New(cfg Config) *Collector {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.CPUs == "" {
		cfg.CPUs = "/sys/devices/system/cpu"
	}
	return &Collector{cfg: cfg, topology: readTopology(cfg.CPUs), writers: make(chan struct{}, maxWriters)}
}

// measure is what everything used within the last second.
func (c *Collector) measure(ctx context.Context) []sample {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.samples != nil && time.Since(c.at) < sampleLife {
		return c.samples
	}
	r := reading{
		reader: c.cfg.Tree.NewReader(), tree: c.cfg.Tree, proc: c.cfg.Proc,
		until: time.Now().Add(processTime),
	}
	r.devices, r.disks = readDisks(r.reader.File(c.cfg.Proc+"/diskstats", maxTable))
	groups := c.cfg.Groups(ctx)
	out := make([]sample, 0, len(groups))
	for _, g := range groups {
		if s, ok := r.sample(g); ok {
			out = append(out, s)
		}
	}
	for i := range out {
		if out[i].root() {
			c.complete(ctx, &r, &out[i])
		}
	}
	c.samples, c.at = out, time.Now()
	return out
}

// complete adds to the root group what only the whole machine has.
func (c *Collector) complete(ctx context.Context, r *reading, s *sample) {
	m := &s.stats.Memory
	m.Known, m.Limit, m.SwapLimit = true, uint64(max(c.cfg.Machine.Memory, 0)), uint64(max(c.cfg.Machine.Swap, 0))
	s.filesystems = c.cfg.Filesystems(ctx)
	for i := range s.filesystems {
		f := &s.filesystems[i]
		f.label = label("device", f.Device)
		f.disk = r.disks[device{f.Major, f.Minor}]
		for _, io := range s.io {
			f.counted = f.counted || io.device == f.label || io.Major == f.Major && io.Minor == f.Minor
		}
	}
}
