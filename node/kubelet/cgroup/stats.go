package cgroup

import (
	"os"
	"path/filepath"
	"time"

	"knarr/internal/kernfs"
)

// Stats is what the kernel counts of one group and its descendants, and the
// limits that are set on it. What a kernel or a hierarchy does not count is zero.
type Stats struct {
	// Made is when the group was made, as far as its files tell.
	Made   time.Time
	CPU    CPUStats
	Memory MemoryStats
	IO     []IOCount
	Pids   PidsStats
}

// CPUStats are nanoseconds, but for the limits, which are microseconds.
type CPUStats struct {
	Known                                bool // whether there is such a controller
	Usage, User, System                  uint64
	Periods, ThrottledPeriods, Throttled uint64
	BurstPeriods, Burst                  uint64
	Shares, Period, Quota                uint64 // Quota 0: no limit
}

// MemoryStats are bytes and counts.
type MemoryStats struct {
	Known                                   bool
	Usage, MaxUsage, WorkingSet             uint64
	Cache, RSS, Kernel, MappedFile, Swap    uint64
	ActiveFile, InactiveFile                uint64
	Failures, Faults, MajorFaults, OOMKills uint64
	Limit, SwapLimit, Reservation           uint64 // unlimited is at least 1<<62
}

// PidsStats are how many tasks there are and may be; Max 0: any number.
type PidsStats struct{ Current, Max uint64 }

// An IOCount is what one operation (Read, Write and on version 1 Sync, Async,
// Discard and Total) did to a device.
type IOCount struct {
	Major, Minor uint64
	Operation    string
	Bytes, Count uint64
}

// longFile bounds a list of devices or processes: what a pod makes long.
const longFile = 1 << 20

// A Reader reads groups one after the other with one buffer. It is for one
// goroutine.
type Reader struct {
	tree *Tree
	kernfs.Reader
}

// NewReader reads the groups of a tree.
func (t *Tree) NewReader() *Reader { return &Reader{t, kernfs.NewReader()} }

// Stats reads a group; false if it is not there.
func (r *Reader) Stats(path string) (Stats, bool) {
	if r.tree.v2 {
		return r.stats2(filepath.Join(r.tree.root, path), path == "/")
	}
	return r.stats1(path)
}

// Procs lists the processes of the group itself; false if it cannot be read or
// has more than fit into a list of 1 MiB. The list is valid until the next call.
func (r *Reader) Procs(path string) (pids []byte, ok bool) {
	dir := filepath.Join(r.tree.root, "cpu", path)
	if r.tree.v2 {
		dir = filepath.Join(r.tree.root, path)
	}
	b := r.File(dir+"/cgroup.procs", longFile)
	return b, b != nil && len(b) < longFile
}

// made is the older of two times of a group's files: a directory's changes when a
// group is made in it.
func made(dir, file string) (at time.Time, ok bool) {
	d, err := os.Stat(dir)
	if err != nil {
		return time.Time{}, false
	}
	at = d.ModTime()
	if f, err := os.Stat(filepath.Join(dir, file)); err == nil && f.ModTime().Before(at) {
		at = f.ModTime()
	}
	return at, true
}
