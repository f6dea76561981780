package cadvisor

import (
	"path/filepath"
	"strconv"
	"time"

	"knarr/node/kubelet/cgroup"
)

// A sample is what one group used at one time.
type sample struct {
	Group
	labels string // the six labels of every series of it
	at     time.Time
	stats  cgroup.Stats
	io     []operation

	processes, descriptors, sockets int64 // -1: not known
	openFiles                       int64 // the limit of the first process; -1: none
	hasLimits                       bool
	interfaces                      []Interface
	filesystems                     []Filesystem
	pressure                        [len(resources)]cgroup.Pressure
	hasPressure                     bool
}

// An operation is a count of the group's with its labels.
type operation struct {
	cgroup.IOCount
	device, all string
}

func (s *sample) root() bool { return s.Path == "/" }

// resources are what tasks may wait for.
var resources = [...]string{"cpu", "memory", "io"}

// A reading is one measurement of all groups.
type reading struct {
	reader  *cgroup.Reader
	tree    *cgroup.Tree
	proc    string
	until   time.Time // when descriptors are counted no more
	devices map[device]string
	disks   map[device]diskCounts
}

// sample reads a group; false if it is not there any more.
func (r *reading) sample(g Group) (s sample, ok bool) {
	s = sample{Group: g, at: time.Now(), processes: -1, descriptors: -1, sockets: -1}
	if s.stats, ok = r.reader.Stats(g.Path); !ok {
		return s, false
	}
	s.labels = baseLabels(g)
	for _, c := range s.stats.IO {
		device := label("device", r.deviceName(c.Major, c.Minor))
		s.io = append(s.io, operation{c, device, device + `,major="` + strconv.FormatUint(c.Major, 10) + `",minor="` +
			strconv.FormatUint(c.Minor, 10) + `",` + label("operation", c.Operation)})
	}
	r.processes(&s)
	for i, resource := range resources {
		p, ok := r.tree.Pressure(g.Path, resource)
		if !ok && s.root() && r.tree.V2() {
			p, ok = cgroup.NodePressure(resource)
		}
		s.pressure[i] = p
		s.hasPressure = s.hasPressure || ok
	}
	return s, true
}

// processes adds what the processes of a group have open, and the network and the
// limits of the first of them.
func (r *reading) processes(s *sample) {
	list, ok := r.reader.Procs(s.Path)
	if !ok {
		return
	}
	pids := parsePids(list)
	s.processes = int64(len(pids))
	s.descriptors, s.sockets = r.descriptors(pids)
	first := ""
	switch {
	case s.root():
		first = "self" // whose network is the node's, in a namespace or not
	case s.Name != "" && len(pids) > 0:
		first = pids[0]
	default:
		return
	}
	dir := filepath.Join(r.proc, first)
	if s.Network {
		s.interfaces = Interfaces(r.reader.File(dir+"/net/dev", maxTable))
	}
	s.openFiles, s.hasLimits = parseOpenFiles(r.reader.File(dir+"/limits", maxTable))
}

func (r *reading) deviceName(major, minor uint64) string {
	if name := r.devices[device{major, minor}]; name != "" {
		return "/dev/" + name
	}
	return strconv.FormatUint(major, 10) + ":" + strconv.FormatUint(minor, 10)
}
