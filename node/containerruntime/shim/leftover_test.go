package shim

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"knarr/internal/need"

	"golang.org/x/sys/unix"
)

// TestReapLeftovers: a child that ended halfway into a container is reaped if it was there
// before; one that is waited for by its number, and one under another name, are not.
func TestReapLeftovers(t *testing.T) {
	if all, _ := filepath.Glob("/proc/self/task/*/children"); len(all) == 0 {
		need.Skip(t, "needs a kernel that lists the children of a process: CONFIG_PROC_CHILDREN")
	}
	zombie := func(name string) int {
		path := filepath.Join(t.TempDir(), name)
		if err := os.Symlink("/bin/true", path); err != nil {
			t.Fatal(err)
		}
		p, err := os.StartProcess(path, []string{name}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = unix.Wait4(p.Pid, nil, 0, nil) })
		return p.Pid
	}
	left, known, other := zombie("runc:[2:INIT]"), zombie("runc:[1:CHILD]"), zombie("true")
	seen := leftovers("/proc", map[int]bool{known: true})
	if n := reap(nil, seen); n != 0 {
		t.Errorf("%d were reaped that were not there before", n)
	}
	if n := reap(map[int]string{left: "0"}, seen); n != 0 {
		t.Errorf("%d were reaped whose numbers were others' before", n)
	}
	if n := reap(seen, leftovers("/proc", map[int]bool{known: true})); n != 1 {
		t.Errorf("%d were reaped, want 1", n)
	}
	for pid, there := range map[int]bool{left: false, known: true, other: true} {
		if err := unix.Kill(pid, 0); (err == nil) != there {
			t.Errorf("%d is there: %v, want %v", pid, err == nil, there)
		}
	}
}

// TestNumbers: while one container is slow others answer, and all processes are known in
// the end.
func TestNumbers(t *testing.T) {
	slow := &task{key: key{"k8s.io", "slow"}, init: newProcess("", stdio{}), execs: map[string]*process{"e": newProcess("e", stdio{})}}
	slow.init.pid, slow.execs["e"].pid = 7, 8
	s := &Service{tasks: map[key]*task{slow.key: slow}}
	slow.mu.Lock() // as by an update that the kernel takes long for
	known := make(chan map[int]bool, 1)
	go func() { known <- s.numbers() }()
	for stacks := make([]byte, 1<<20); ; runtime.Gosched() {
		if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "sync.Mutex.Lock") && strings.Contains(all, "(*Service).numbers(") {
			break
		}
	}
	if !s.mu.TryLock() {
		t.Error("every call waits for one container")
	} else {
		s.mu.Unlock()
	}
	slow.mu.Unlock()
	if got := <-known; !got[7] || !got[8] {
		t.Error(got)
	}
}

// TestHalfway: names of processes may look like the rest of the line.
func TestHalfway(t *testing.T) {
	for stat, want := range map[string]bool{
		"7 (runc:[2:INIT]) Z 1 7":    true,
		"7 (runc:[1:CHILD]) Z 1 7":   true,
		"7 (runc:[2:INIT]) S 1 7":    false,
		"7 (nginx) Z 1 7":            false,
		"7 (x) Z (runc:[) S 1 7":     false,
		"7 (runc:[2:INIT]) Z) S 1 7": false,
		"":                           false,
	} {
		if got := halfway(stat); got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
}
