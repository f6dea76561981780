package containerruntime

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
)

func TestLabelled(t *testing.T) {
	for _, c := range []struct {
		enabled bool
		mode    int
		want    bool
	}{{false, selinux.Disabled, false}, {false, selinux.Enforcing, false}, {true, selinux.Permissive, false}, {true, selinux.Enforcing, true}} {
		if got := labelled(c.enabled, c.mode); got != c.want {
			t.Errorf("enabled %v, mode %d: %v", c.enabled, c.mode, got)
		}
		runtime := settings(Config{}, host{selinux: c.want})["io.containerd.cri.v1.runtime"]
		if runtime["enable_selinux"] != c.want {
			t.Errorf("containerd is told %v, want %v", runtime["enable_selinux"], c.want)
		}
	}
}

func TestLimitsHugepages(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if limitsHugepages(root) {
		t.Error("where there is nothing")
	}
	put("hugetlb/cgroup.procs", "")
	if !limitsHugepages(root) {
		t.Error("not on version 1")
	}
	put("cgroup.controllers", "cpu memory pids\n")
	if limitsHugepages(root) {
		t.Error("on version 2 without the controller")
	}
	put("cgroup.controllers", "cpu hugetlb pids\n")
	if !limitsHugepages(root) {
		t.Error("not on version 2")
	}
	for _, is := range []bool{true, false} {
		if off := settings(Config{}, host{hugetlb: is})["io.containerd.cri.v1.runtime"]["disable_hugetlb_controller"]; off == is {
			t.Errorf("limits %v, containerd leaves them out: %v", is, off)
		}
	}
}
