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

// leftoverAge is how long whoever starts a process may take to wait for what it has
// forked itself.
const leftoverAge = 5 * time.Second

// leftBy waits for what a start that failed may have left. libcontainer forks twice
// on the way into a container and forgets both when the first of them fails: in a
// program that ends, another reaps them. Here they stay zombies, and the first process
// of a container does not end while there is one in its process namespace. What is a
// zombie at one look only may be of a start that goes well, which waits for it itself.
func (s *Service) leftBy() {
	if s.reaping.Swap(true) {
		return // one that has not looked yet will
	}
	run.Go("shim: what a failed start left", func() {
		time.Sleep(leftoverAge)
		s.reaping.Store(false)
		seen := leftovers("/proc", s.numbers())
		time.Sleep(leftoverAge)
		reap(seen, leftovers("/proc", s.numbers()))
	})
}

// numbers are the processes that are waited for. A container's lock may be held for as long
// as the kernel takes to change its control groups: the service's is not held meanwhile,
// which every call needs.
func (s *Service) numbers() map[int]bool {
	s.mu.Lock()
	tasks, known := make([]*task, 0, len(s.tasks)), make(map[int]bool, len(s.tasks))
	for _, t := range s.tasks {
		tasks = append(tasks, t)
		if t.init != nil {
			known[t.init.number()] = true
		}
	}
	s.mu.Unlock()
	for _, t := range tasks {
		t.mu.Lock()
		for _, p := range t.execs {
			known[p.number()] = true
		}
		t.mu.Unlock()
	}
	return known
}

// leftovers are the children that ended on their way into a container and that are not
// known: their numbers, and when each began.
func leftovers(proc string, known map[int]bool) map[int]string {
	found := map[int]string{}
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
			if err == nil && halfway(string(stat)) {
				found[pid] = began(string(stat))
			}
		}
	}
	return found
}

// reap waits for those that are in both looks, and returns how many.
func reap(before, now map[int]string) (n int) {
	for pid, began := range now {
		if before[pid] != began || began == "" {
			continue
		}
		if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err == nil && got == pid {
			n++
		}
	}
	return n
}

// began is when the process of a line of /proc/PID/stat began, in ticks; its number alone
// may be another's later. Pure.
func began(stat string) string {
	const after = 19 // fields from the state to it
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) <= after {
		return ""
	}
	return f[after]
}

// halfway reports whether a line of /proc/PID/stat is that of a zombie which ended on its
// way into a container. Pure.
func halfway(stat string) bool {
	return entering(stat) && strings.HasPrefix(stat[strings.LastIndexByte(stat, ')'):], ") Z")
}

// entering reports whether a line of /proc/PID/stat has the name that libcontainer's own
// processes have until they are the user's program. Pure.
func entering(stat string) bool {
	at := strings.LastIndexByte(stat, ')') // a name may hold anything
	if at < 0 {
		return false
	}
	_, name, _ := strings.Cut(stat[:at], "(")
	return strings.HasPrefix(name, "runc:[")
}
