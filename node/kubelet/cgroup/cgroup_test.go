package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"knarr/internal/need"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// The unified hierarchy, on a directory tree.
func TestUnified(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory pids rdma\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"a", "a/b"} { // files the kernel would make
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cpu.weight", "cpu.max", "memory.max", "pids.max"} {
			if err := os.WriteFile(filepath.Join(dir, p, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tree := OpenAt(dir)
	if !tree.V2() {
		t.Fatal("not taken for the unified hierarchy")
	}
	if err := tree.Ensure("/a/b", Limits{CPUShares: 1024, CPUQuota: 50000, CPUPeriod: 100000, Memory: 1 << 20, Pids: 9}); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{"cpu.weight": "39", "cpu.max": "50000 100000", "memory.max": "1048576", "pids.max": "9"} {
		if got := read(t, dir, "a/b", f); got != want {
			t.Errorf("%s: %q, want %q", f, got, want)
		}
	}
	if err := tree.Ensure("/a/b", Limits{CPUQuota: -1, CPUPeriod: 100000}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, "a/b/cpu.max"); got != "max 100000" {
		t.Errorf("without a quota: %q", got)
	}
	if got := read(t, dir, "cgroup.subtree_control"); got != "+pids" { // one write per controller; the file keeps the last
		t.Errorf("subtree_control %q", got)
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[int64]int64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 30: 10000} {
		if got := Weight(shares); got != want {
			t.Errorf("%d shares: %d, want %d", shares, got, want)
		}
	}
}

// This machine's own hierarchy.
func TestKernel(t *testing.T) {
	need.Root(t)
	tree := Open()
	name := "/knarr-test-" + filepath.Base(t.TempDir())
	if err := tree.Ensure(name+"/pod", Limits{CPUShares: 100, Memory: 64 << 20}); err != nil {
		need.Skip(t, "needs control groups that can be written to: mount /sys/fs/cgroup writable: ", err)
	}
	defer func() {
		if err := tree.Remove(name); err != nil {
			t.Error(err)
		}
	}()
	if _, _, err := tree.Memory(name + "/pod"); err != nil {
		t.Error(err)
	}
	if _, err := tree.CPU(name + "/pod"); err != nil {
		t.Error(err)
	}
	if tree.Remove("/") == nil || tree.Kill("/") == nil {
		t.Error("the root was removed or killed")
	}

	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	in := []string{filepath.Join(tree.root, name, "pod")}
	if !tree.v2 {
		in = nil
		for _, c := range tree.controllers {
			in = append(in, filepath.Join(tree.root, c, name, "pod"))
		}
	}
	for _, dir := range in {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			_ = cmd.Process.Kill()
			t.Fatal(err)
		}
	}
	if tree.Remove(name) == nil {
		t.Error("a group was removed with a process in it")
	}
	if err := tree.Kill(name); err != nil {
		t.Error(err)
	}
	<-ended
	if err := tree.Kill(name + "/none"); err != nil {
		t.Errorf("no such group: %v", err)
	}
}
