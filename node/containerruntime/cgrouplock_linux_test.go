package containerruntime

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"knarr/internal/need"
)

// TestCgroupLock: it is taken, and this process stays where it is.
func TestCgroupLock(t *testing.T) {
	need.Root(t)
	groups := func() string {
		t.Helper()
		b, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := groups()
	l := &cgroupLock{root: "/sys/fs/cgroup"}
	for range 3 {
		if err := l.take(); err != nil {
			t.Fatal(err)
		}
		l.last = time.Time{}
	}
	if after := groups(); after != before {
		t.Errorf("this process was moved from %q to %q", before, after)
	}
	l.close()
	if err := l.take(); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// A group of the same name that this process is not in is another namespace's.
func TestOpenMembers(t *testing.T) {
	root, pid := t.TempDir(), os.Getpid()
	write := func(group, members string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, group, "cgroup.procs"), []byte(members), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const groups = "9:name=systemd:/a\n4:memory:/b\n0::/\n\n"
	if f := openMembers(root, groups, pid); f != nil {
		t.Errorf("opened %s", f.Name())
	}
	write("memory/b", "1\n1"+strconv.Itoa(pid)+"\n")
	if f := openMembers(root, groups, pid); f != nil {
		t.Errorf("opened %s, which this process is not in", f.Name())
	}
	write("", "1\n"+strconv.Itoa(pid)+"\n")
	if f := openMembers(root, groups, pid); f == nil || f.Name() != filepath.Join(root, "cgroup.procs") {
		t.Errorf("opened %v", f)
	}
	write("systemd/a", strconv.Itoa(pid))
	if f := openMembers(root, groups, pid); f == nil || f.Name() != filepath.Join(root, "systemd/a/cgroup.procs") {
		t.Errorf("opened %v", f)
	}
}
