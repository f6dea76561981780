package systemoom

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const oom = "3,1234,56789,-;Out of memory: Killed process 4321 (stress (x) total-vm:8388608kB, anon-rss:1kB\n"

func TestParse(t *testing.T) {
	for record, want := range map[string]struct {
		process string
		pid     int
	}{
		"3,1,2,-;Out of memory: Killed process 4321 (stress) total-vm:8kB":                       {"stress", 4321},
		"3,1,2,-;Out of memory: Kill process 12 (old kernel) score 900":                          {"old kernel", 12},
		"3,1,2,-;Out of memory (oom_kill_allocating_task): Killed process 12 (one) total-vm:8kB": {"one", 12},
		"3,1,2,-;Memory cgroup out of memory: Killed process 4321 (stress)":                      {},
		"12,1,2,-;Out of memory: Killed process 4321 (liar)":                                     {},
		"6,1,2,-;usb 1-1: new device":                                                            {},
		"Out of memory: Killed process 4321 (stress)":                                            {},
		"": {},
	} {
		process, pid, ok := Parse(record)
		if process != want.process || pid != want.pid || ok != (want.pid > 0) {
			t.Errorf("%q: %q, %d, %v", record, process, pid, ok)
		}
	}
}

// TestWatch: records are read as they come, until the end.
func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0) // so that neither end waits for the other
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan int, 1), make(chan error, 1)
	go func() { ended <- Watch(ctx, path, func(_ string, pid int) { seen <- pid }) }()
	if _, err := w.WriteString(oom); err != nil {
		t.Fatal(err)
	}
	if pid := <-seen; pid != 4321 {
		t.Error(pid)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := Watch(t.Context(), filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a log that there is not is read")
	}
}

// FuzzParse: a name has a bound, whatever the record is.
func FuzzParse(f *testing.F) {
	f.Add(oom)
	f.Add("3,1,2,-;Out of memory: Killed process 99999999999999999999 (x)")
	f.Fuzz(func(t *testing.T, record string) {
		if process, pid, ok := Parse(record); ok && (len(process) > 256 || pid < 0) {
			t.Errorf("%q: %q, %d", record, process, pid)
		}
	})
}
