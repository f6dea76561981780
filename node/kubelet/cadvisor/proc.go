package cadvisor

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxTable bounds a file of /proc that is read whole.
	maxTable = 1 << 20
	// maxProcesses and maxDescriptors bound what is looked at to count the
	// descriptors of a group. One that has more has no such figure: a part of it
	// would be a lie, and all of it is what a pod makes expensive.
	maxProcesses, maxDescriptors = 1024, 8192
	// maxInterfaces bounds those of one network, which its pod may add to.
	maxInterfaces = 64
)

func parsePids(list []byte) (pids []string) {
	for line := range bytes.Lines(list) {
		if pid := string(bytes.TrimSpace(line)); pid != "" && pid != "0" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descriptors counts what processes have open, and how much of it are sockets; -1
// if it is too much to count.
func (r *reading) descriptors(pids []string) (all, sockets int64) {
	if len(pids) > maxProcesses {
		return -1, -1
	}
	for _, pid := range pids {
		if time.Now().After(r.until) {
			return -1, -1
		}
		n, s := countDescriptors(filepath.Join(r.proc, pid, "fd"), maxDescriptors-int(all))
		if n < 0 {
			return -1, -1
		}
		all, sockets = all+int64(n), sockets+int64(s)
	}
	return all, sockets
}

// countDescriptors counts the links in a directory, and those to sockets; -1 if
// there are more than most. A process that has ended has none.
func countDescriptors(dir string, most int) (n, sockets int) {
	f, err := os.Open(dir)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	var to [64]byte
	for {
		names, err := f.Readdirnames(256)
		if n += len(names); n > most {
			return -1, -1
		}
		for _, name := range names {
			if got, err := unix.Readlinkat(int(f.Fd()), name, to[:]); err == nil && bytes.HasPrefix(to[:got], []byte("socket")) {
				sockets++
			}
		}
		if err != nil || len(names) == 0 {
			return n, sockets
		}
	}
}

// An Interface is what /proc/net/dev says of one: of each direction bytes, packets,
// errors and dropped packets.
type Interface struct {
	Name              string
	Receive, Transmit [4]uint64
	label             string
}

// Interfaces reads /proc/net/dev. Pairs of virtual Ethernet and the loopback
// are left out, as cAdvisor does.
func Interfaces(b []byte) (out []Interface) {
	for line := range bytes.Lines(b) {
		name, counts, ok := strings.Cut(string(line), ":")
		name = strings.TrimSpace(name)
		words := strings.Fields(counts)
		if !ok || len(words) != 16 || ignoredInterface(name) || len(out) >= maxInterfaces {
			continue
		}
		i := Interface{Name: name, label: label("interface", name)}
		for n := range i.Receive {
			i.Receive[n], _ = strconv.ParseUint(words[n], 10, 64)
			i.Transmit[n], _ = strconv.ParseUint(words[8+n], 10, 64)
		}
		out = append(out, i)
	}
	return out
}

func ignoredInterface(name string) bool {
	for _, prefix := range []string{"lo", "veth", "docker", "nerdctl"} {
		if strings.HasPrefix(strings.ToLower(name), prefix) {
			return true
		}
	}
	return false
}

// parseOpenFiles reads /proc/PID/limits: how many files may be open; -1: any number.
func parseOpenFiles(b []byte) (int64, bool) {
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("Max open files"))
		words := bytes.Fields(rest)
		if !ok || len(words) == 0 {
			continue
		}
		if string(words[0]) == "unlimited" {
			return -1, true
		}
		n, err := strconv.ParseInt(string(words[0]), 10, 64)
		return n, err == nil
	}
	return 0, false
}
