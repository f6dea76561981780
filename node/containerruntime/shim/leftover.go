package shim

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// leftoverAge is how long whoever starts a process may still wait for what it has
// forked itself.
const leftoverAge = 5 * time.Second

// leftBy waits for what a start that failed may have left. libcontainer forks twice
// on the way into a container and forgets both when the first of them fails: in a
// program that ends, another reaps them. Here they stay zombies, and the first process
// of a container does not end while there is one in its process namespace.
func (s *Service) leftBy() {
	run.Go("shim: what a failed start left", func() {
		time.Sleep(leftoverAge)
		reapLeftovers("/proc", s.numbers())
	})
}

// numbers are the processes that are waited for.
func (s *Service) numbers() map[int]bool {
	known := map[int]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		if t.init != nil {
			known[t.init.number()] = true
		}
		t.mu.Lock()
		for _, p := range t.execs {
			known[p.number()] = true
		}
		t.mu.Unlock()
	}
	return known
}

// reapLeftovers reaps the children that ended on their way into a container and that
// are not known. It returns how many.
func reapLeftovers(proc string, known map[int]bool) (n int) {
	lists, _ := filepath.Glob(filepath.Join(proc, "self/task/*/children"))
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that ended
		}
		for word := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(word)
			if err != nil || known[pid] {
				continue
			}
			stat, err := os.ReadFile(filepath.Join(proc, word, "stat"))
			if err != nil || !halfway(string(stat)) {
				continue
			}
			if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err == nil && got == pid {
				n++
			}
		}
	}
	return n
}

// halfway reports whether a line of /proc/PID/stat is that of a zombie under the name
// that libcontainer's own processes have until they are the user's program. Pure.
func halfway(stat string) bool {
	at := strings.LastIndexByte(stat, ')') // a name may hold anything
	if at < 0 {
		return false
	}
	_, name, _ := strings.Cut(stat[:at], "(")
	return strings.HasPrefix(name, "runc:[") && strings.HasPrefix(stat[at:], ") Z")
}
