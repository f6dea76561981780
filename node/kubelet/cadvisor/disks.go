package cadvisor

import (
	"bytes"
	"strconv"
)

// A Filesystem is one of the node's.
type Filesystem struct {
	// Device is what it is mounted from.
	Device                         string
	Major, Minor                   uint64
	Size, Free, Inodes, InodesFree uint64

	label   string
	disk    diskCounts
	counted bool // the group itself counts what is done to the device
}

// A device is a block device by its numbers.
type device struct{ major, minor uint64 }

// diskCounts are the columns of /proc/diskstats after the name: reads completed,
// merged, sectors and milliseconds, the same of writes, operations in progress,
// milliseconds of work, and the same weighted by how many waited.
type diskCounts [11]uint64

const (
	readsCompleted = iota
	readsMerged
	sectorsRead
	readTime
	writesCompleted
	writesMerged
	sectorsWritten
	writeTime
	inProgress
	ioTime
	weightedTime
)

// readDisks reads /proc/diskstats. Pure.
func readDisks(b []byte) (names map[device]string, counts map[device]diskCounts) {
	names, counts = map[device]string{}, map[device]diskCounts{}
	for line := range bytes.Lines(b) {
		words := bytes.Fields(line)
		if len(words) < 3+len(diskCounts{}) {
			continue
		}
		number := func(i int) uint64 {
			n, _ := strconv.ParseUint(string(words[i]), 10, 64)
			return n
		}
		d := device{number(0), number(1)}
		var c diskCounts
		for i := range c {
			c[i] = number(3 + i)
		}
		names[d], counts[d] = string(words[2]), c
	}
	return names, counts
}

// A Mount is a file system that is mounted from a block device.
type Mount struct {
	Source, Dir  string
	Major, Minor uint64
}

// maxMounts bounds how many file systems of a node are told of.
const maxMounts = 64

// ParseMounts reads /proc/PID/mountinfo: the first mount of each file system that
// comes from a device of /dev, so that none is asked which another machine serves.
func ParseMounts(b []byte) (out []Mount) {
	seen := map[device]bool{}
	for line := range bytes.Lines(b) {
		before, after, ok := bytes.Cut(line, []byte(" - "))
		words, source := bytes.Fields(before), bytes.Fields(after)
		if !ok || len(words) < 5 || len(source) < 2 || !bytes.HasPrefix(source[1], []byte("/dev/")) {
			continue
		}
		major, minor, _ := bytes.Cut(words[2], []byte{':'})
		var d device
		d.major, _ = strconv.ParseUint(string(major), 10, 64)
		d.minor, _ = strconv.ParseUint(string(minor), 10, 64)
		if seen[d] || len(out) >= maxMounts {
			continue
		}
		seen[d] = true
		out = append(out, Mount{string(source[1]), string(words[4]), d.major, d.minor})
	}
	return out
}
