package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"knarr/internal/kernfs"
)

// TestStats1: what containerd's CRI passes on of a container is read of version 1's files;
// what there is not is zero, and a group that is gone is not found.
func TestStats1(t *testing.T) {
	dir := t.TempDir()
	paths := map[string]string{}
	for name, content := range map[string]string{
		"cpuacct/cpuacct.usage":            "5000000000\n",
		"cpuacct/cpuacct.stat":             "user 300\nsystem 200\n",
		"cpu/cpu.stat":                     "nr_periods 9\nnr_throttled 3\nthrottled_time 70\n",
		"memory/memory.usage_in_bytes":     "1000\n",
		"memory/memory.max_usage_in_bytes": "1200\n",
		"memory/memory.limit_in_bytes":     "9223372036854771712\n",
		"memory/memory.failcnt":            "4\n",
		"memory/memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"memory/memory.stat":               "cache 1\ntotal_rss 600\ntotal_inactive_file 50\ntotal_pgmajfault 8\nnew_in_some_kernel 3\n",
		"pids/pids.current":                "7\n",
		"pids/pids.max":                    "max\n",
	} {
		path := filepath.Join(dir, name)
		paths[filepath.Dir(name)] = filepath.Dir(path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r := kernfs.NewReader()
	m, err := stats1(&r, paths)
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string][2]uint64{
		"cpu": {m.CPU.Usage.Total, 5e9}, "user": {m.CPU.Usage.User, 3e9}, "kernel": {m.CPU.Usage.Kernel, 2e9},
		"periods": {m.CPU.Throttling.Periods, 9}, "throttled": {m.CPU.Throttling.ThrottledTime, 70},
		"usage": {m.Memory.Usage.Usage, 1000}, "most": {m.Memory.Usage.Max, 1200}, "limit": {m.Memory.Usage.Limit, 9223372036854771712},
		"failures": {m.Memory.Usage.Failcnt, 4}, "kills": {m.MemoryOomControl.OomKill, 2}, "cache": {m.Memory.Cache, 1},
		"rss": {m.Memory.TotalRSS, 600}, "inactive": {m.Memory.TotalInactiveFile, 50}, "faults": {m.Memory.TotalPgMajFault, 8},
		"swap": {m.Memory.Swap.Usage, 0}, "pids": {m.Pids.Current, 7}, "most pids": {m.Pids.Limit, 1<<64 - 1},
	} {
		if n[0] != n[1] {
			t.Errorf("%s: %d, not %d", name, n[0], n[1])
		}
	}
	delete(paths, "pids")
	delete(paths, "cpuacct")
	if m, err = stats1(&r, paths); err != nil || m.CPU != nil || m.Pids != nil || m.Memory.Usage.Usage != 1000 {
		t.Errorf("memory alone is counted: %+v, %v", m, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := stats1(&r, paths); !errdefs.IsNotFound(err) {
		t.Errorf("a group that is gone: %v", err)
	}
}
