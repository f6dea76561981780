package cluster

import (
	"bufio"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockHolder is no test but the process that TestStopWaitsForTheProcess
// stops: it lets go of its lock, and ends only later.
func TestLockHolder(t *testing.T) {
	path := os.Getenv("KNARR_TEST_LOCK")
	if path == "" {
		t.Skip("started by another test")
	}
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	os.Stdout.WriteString("held\n")
	<-signals
	lock.Close()
	// The rest of its end takes long beside the look at the lock.
	for sum := range 1 << 30 {
		runtime.KeepAlive(sum)
	}
}

// The lock is free before the process has ended; only its end is waited for.
func TestStopWaitsForTheProcess(t *testing.T) {
	l := layout{t.TempDir()}
	cmd := exec.Command(os.Args[0], "-test.run=^TestLockHolder$")
	cmd.Env = append(os.Environ(), "KNARR_TEST_LOCK="+l.lock())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	read := bufio.NewReader(out)
	for line := ""; line != "held\n"; {
		if line, err = read.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	pid, err := l.stopRunning(t.Context())
	if err != nil || pid != cmd.Process.Pid {
		t.Fatalf("stopped %d, %v, want %d", pid, err, cmd.Process.Pid)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil || info.Signo == 0 {
		t.Errorf("process %d still runs (%v)", pid, err)
	}
	_ = cmd.Wait()
	if pid, err := l.stopRunning(t.Context()); pid != 0 || err != nil {
		t.Errorf("stopped %d, %v, and none ran", pid, err)
	}
}

func TestRemovalInOneLine(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"data/kubelet/pods", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	paths := existing([]string{filepath.Join(dir, "run"), filepath.Join(data, "kubelet/pods"), filepath.Join(dir, "absent"), data})
	got := removal{process: 7, links: []string{"knarr0"}, paths: paths, tables: []string{"knarr", "knarr-cni"}, data: data}.String()
	if want := "stopped process 7; removed all containers, knarr0, nftables table knarr, nftables table knarr-cni, DIR/run, DIR/data"; strings.ReplaceAll(got, dir, "DIR") != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	got = removal{paths: paths[:1], data: data, kept: true}.String()
	if want := "removed all containers, DIR/run; kept the data in DIR/data (--purge removes it)"; strings.ReplaceAll(got, dir, "DIR") != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
