package shim

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// TestStartGivenUp: what a start forks is killed once nobody waits for the start, though it is
// stopped; what its thread had forked before is not, nor what a start forks that is waited for.
func TestStartGivenUp(t *testing.T) {
	if all, _ := filepath.Glob("/proc/self/task/*/children"); len(all) == 0 {
		need.Skip(t, "needs a kernel that lists the children of a process: CONFIG_PROC_CHILDREN")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := exec.Command("sleep", "1000")
	if err := before.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = before.Process.Kill(); _ = before.Wait() }()

	gone, giveUp := context.WithCancel(t.Context())
	inTime, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stopped := exec.CommandContext(inTime, "sh", "-c", "kill -STOP $$; exec sleep 1000")
	err := startWanted(gone.Done(), func() error {
		if err := stopped.Start(); err != nil {
			return err
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(stopped.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Error("it is not stopped:", status, err)
		}
		giveUp()
		return stopped.Wait()
	})
	if err == nil || !strings.Contains(err.Error(), "signal: killed") || inTime.Err() != nil {
		t.Error("one that was stopped:", err)
	}
	if err := before.Process.Signal(unix.Signal(0)); err != nil {
		t.Error("one of before:", err)
	}
	if err := startWanted(t.Context().Done(), exec.Command("sh", "-c", "(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 3").Run); err == nil || err.Error() != "exit status 3" {
		t.Error("one that is waited for:", err)
	}
}

// TestKillChild: nobody but a child is killed.
func TestKillChild(t *testing.T) {
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		if _, ok := killChild(pid); ok {
			t.Fatal("killed", pid)
		}
	}
}

// TestAbandoned: a process that was given up is not started, and one that was started is not
// given up.
func TestAbandoned(t *testing.T) {
	p := newProcess("e", stdio{})
	if !p.abandon() {
		t.Error("one that was not started is kept")
	}
	if err := p.opened(os.Getpid()); !errors.Is(err, errUnwanted) || p.number() != 0 {
		t.Error("it is started:", err)
	}
	p = newProcess("e", stdio{})
	if err := p.opened(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	defer p.handle.Close()
	if p.abandon() || p.wanted.Err() != nil {
		t.Error("one that was started is given up")
	}
}

// TestWaitForOther: a process of the program before is waited for; one that has not got into
// its container is killed, though it is stopped.
func TestWaitForOther(t *testing.T) {
	start := func(name string) *exec.Cmd {
		path := filepath.Join(t.TempDir(), name)
		if err := os.Symlink("/bin/sleep", path); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(path, "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		if err := c.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		return c
	}
	half, other := start("runc:[2:INIT]"), start("sleep")
	ended := make(chan int, 2)
	for _, c := range []*exec.Cmd{half, other} {
		go func() {
			waitForOther(c.Process.Pid)
			ended <- c.Process.Pid
		}()
	}
	select {
	case pid := <-ended:
		if pid != half.Process.Pid {
			t.Error("one that runs in its container is ended")
		}
	case <-time.After(20 * time.Second):
		t.Error("one that was on its way stays")
	}
	if err := unix.Kill(other.Process.Pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	<-ended
}
