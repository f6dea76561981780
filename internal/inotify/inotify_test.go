package inotify

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// apartEnv has the test run in a user namespace, in which each user has one instance.
const apartEnv = "KNARR_TEST_APART"

// TestApart: where root has all the instances it may, as a pod can see to, there is one more,
// and who makes it may do what root may.
func TestApart(t *testing.T) {
	need.Root(t)
	if os.Getenv(apartEnv) == "" {
		all := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestApart$", "-test.count=1", "-test.v")
		cmd.Env = append(os.Environ(), apartEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true}
		out, err := cmd.CombinedOutput()
		if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
			need.Skip(t, "needs user namespaces: ", err)
		}
		if skipped := strings.Contains(string(out), "--- SKIP: TestApart"); err != nil || !skipped && !strings.Contains(string(out), "--- PASS: TestApart") {
			t.Fatalf("%v\n%s", err, out)
		} else if skipped {
			need.Skip(t, string(out))
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("1"), 0); err != nil {
		need.Skip(t, "needs to bound the users of its namespace: ", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("root's second: %v", err)
	}
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := os.WriteFile(closed, []byte("closed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(closed, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	if err := Apart(func() error {
		if b, err := os.ReadFile(closed); string(b) != "closed" {
			t.Errorf("another's file: %q, %v", b, err)
		}
		if unix.Geteuid() == 0 {
			t.Error("the thread is still root's")
		}
		return os.WriteFile(filepath.Join(dir, "made"), nil, 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("a file belongs to %d", owner)
	}
	select {
	case <-w.Events:
	case err := <-w.Errors:
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("the file that was made is not seen")
	}
	if unix.Geteuid() != 0 {
		t.Error("the process is not root's any more")
	}
	var many sync.WaitGroup
	for range 200 {
		many.Go(func() { _ = Apart(func() error { return nil }) })
	}
	many.Wait()
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		t.Errorf("it can be dumped: %d, %v", dumpable, err)
	}
}

// TestUser: users that a pod's securityContext can name are below.
func TestUser(t *testing.T) {
	for range 1000 {
		if u := user(); u < 1<<31 || u >= 1<<32-2 {
			t.Fatal(u)
		}
	}
}
