package shim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestExternalPipes: of what processes have as their input and outputs the pipes of the
// container are named, each once, and nothing else.
func TestExternalPipes(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "stdout")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "stderr") // what a container has by that name is not what containerd made
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"7/fd/0": "/dev/null", "7/fd/1": pipe, "7/fd/2": pipe, "8/fd/1": pipe, "8/fd/2": "/dev/null", "9/fd/1": "pipe:[4026531836]", "9/fd/2": file} {
		path := filepath.Join(dir, "proc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		info := strings.Replace(path, "/fd/", "/fdinfo/", 1)
		if err := os.MkdirAll(filepath.Dir(info), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(info, []byte("pos:\t0\nflags:\t0100001\nmnt_id:\t26\nino:\t77\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(pipe)
	if err != nil {
		t.Fatal(err)
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	got := externalPipes(filepath.Join(dir, "proc"), []int{7, 8, 9, 10}, []string{"", pipe, file})
	if want := []string{"file[1a:" + hex(stat.Ino) + "]"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func hex(n uint64) (s string) {
	for ; n > 0; n /= 16 {
		s = string("0123456789abcdef"[n%16]) + s
	}
	return s
}

// TestComplaints: an error has the last of CRIU's own, and only these.
func TestComplaints(t *testing.T) {
	path := filepath.Join(t.TempDir(), criuLog)
	if got := complaints(path); got != "" {
		t.Errorf("%q of no log", got)
	}
	log := "(00.1) Dumping\n" + strings.Repeat("(00.2) Error (criu/a.c:1): old\n", 9) +
		"(00.3) Warn  (criu/b.c:2): odd\n(00.4) Error (criu/sk-inet.c:3): Connected TCP socket, consider using --tcp-established option.\n"
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(t.TempDir(), criuLog)
	if err := os.WriteFile(long, []byte("(00.1) Error "+strings.Repeat("x", 3*maxComplaint)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := complaints(long); len(got) != maxComplaint {
		t.Errorf("%d bytes of a long line", len(got))
	}
	old := "(criu/a.c:1): old; "
	if got, want := complaints(path), old+old+old+"(criu/sk-inet.c:3): Connected TCP socket, consider using --tcp-established option."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
