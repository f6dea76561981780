package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReapLeftovers: a child that ended halfway into a container is reaped; one that is
// waited for by its number, and one under another name, are not.
func TestReapLeftovers(t *testing.T) {
	if _, err := os.Stat("/proc/self/task/" + filepath.Base(firstThread(t)) + "/children"); err != nil {
		t.Skip("this kernel does not list the children of a process")
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
	if n := reapLeftovers("/proc", map[int]bool{known: true}); n != 1 {
		t.Errorf("%d were reaped, want 1", n)
	}
	for pid, there := range map[int]bool{left: false, known: true, other: true} {
		if err := unix.Kill(pid, 0); (err == nil) != there {
			t.Errorf("%d is there: %v, want %v", pid, err == nil, there)
		}
	}
}

// firstThread is the folder of one of this process's threads.
func firstThread(t *testing.T) string {
	all, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(all) == 0 {
		t.Skip("no /proc")
	}
	return all[0]
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
