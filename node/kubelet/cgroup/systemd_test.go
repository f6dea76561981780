package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"knarr/node/kubelet/cgroup/systemdtest"
)

const (
	podSlice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice"
	podUnit  = "kubepods-burstable-podu_1.slice"
)

// withSystemd is a tree of version 2 whose slices a systemd of the test's makes.
func withSystemd(t *testing.T) (*Tree, *systemdtest.Systemd) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := systemdtest.Start(t, dir)
	tree := OpenAt(dir)
	tree.UseSystemd(t.Context(), s.Address)
	return tree, s
}

// TestSlices: a slice is made with its properties, changed, and ended, each through systemd
// and in the tree.
func TestSlices(t *testing.T) {
	tree, s := withSystemd(t)
	if err := tree.Ensure(podSlice, Limits{CPUShares: 1024, Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	p := s.Properties(podUnit)
	if p["CPUWeight"] != uint64(39) || p["MemoryMax"] != uint64(1<<20) || p["DefaultDependencies"] != false || p["MemoryAccounting"] != true || !slices.Equal(p["Wants"].([]string), []string{"kubepods-burstable.slice"}) {
		t.Errorf("%v", p)
	}
	if got := read(t, tree.root, podSlice, "memory.max"); got != "1048576" {
		t.Errorf("memory.max is %s", got)
	}
	connected := tree.systemd.Load()
	if tree.UseSystemd(t.Context(), s.Address); tree.systemd.Load() != connected {
		t.Error("the same bus again is another connection")
	}
	s.Calls()
	if err := tree.Ensure(podSlice, Limits{Memory: 2 << 20, CPUQuota: 50001, CPUPeriod: 100000}); err != nil {
		t.Fatal("a unit that is there already: ", err)
	}
	if p := s.Properties(podUnit); p["MemoryMax"] != uint64(2<<20) || p["CPUQuotaPerSecUSec"] != uint64(510000) || p["CPUWeight"] != uint64(39) {
		t.Errorf("%v", p)
	}
	if got := read(t, tree.root, podSlice, "cpu.max"); got != "51000 100000" {
		t.Errorf("cpu.max is %s, and systemd would write another", got)
	}
	if calls := s.Calls(); !slices.Equal(calls, []string{"StartTransientUnit " + podUnit, "SetUnitProperties " + podUnit}) {
		t.Errorf("%q", calls)
	}
	if err := tree.Remove(podSlice); err != nil {
		t.Fatal(err)
	}
	if tree.Exists(podSlice) || slices.Contains(s.Units(), podUnit) || !slices.Contains(s.Units(), "kubepods-burstable.slice") {
		t.Errorf("left: %v", s.Units())
	}
	s.Calls()
	if err := tree.Remove(podSlice); err != nil || len(s.Calls()) > 0 {
		t.Error("what is not there is removed without a question: ", err)
	}
}

// TestSlicesInUse: systemd is not asked to end what processes are in: it would wait for
// them. What another ends meanwhile is none of it.
func TestSlicesInUse(t *testing.T) {
	tree, s := withSystemd(t)
	if err := tree.Ensure(podSlice, Limits{}); err != nil {
		t.Fatal(err)
	}
	scope := filepath.Join(tree.root, podSlice, "cri-containerd-x.scope")
	if err := os.MkdirAll(scope, 0o755); err != nil {
		t.Fatal(err)
	}
	procs := filepath.Join(scope, "cgroup.procs")
	if err := os.WriteFile(procs, []byte("17\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tree.Remove(podSlice); err == nil || !strings.Contains(err.Error(), "busy") || !slices.Contains(s.Units(), podUnit) {
		t.Errorf("%v, %v", err, s.Units())
	}
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tree.Remove(podSlice); err != nil || tree.Exists(podSlice) {
		t.Error(err)
	}
}

// TestStoppedSlice: a unit that is known and does not run is started again.
func TestStoppedSlice(t *testing.T) {
	tree, s := withSystemd(t)
	if err := tree.Ensure(podSlice, Limits{}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(tree.root, podSlice)); err != nil {
		t.Fatal(err)
	}
	s.Calls()
	if err := tree.Ensure(podSlice, Limits{}); err != nil || !slices.Contains(s.Calls(), "StartUnit "+podUnit) {
		t.Error(err)
	}
}

// TestFailedJobs: how a job ends and that it does not are errors that name the unit, and the
// next try succeeds.
func TestFailedJobs(t *testing.T) {
	tree, s := withSystemd(t)
	tree.systemd.Load().jobTime = 50 * time.Millisecond
	for _, c := range []struct{ result, want string }{
		{"failed", "start systemd unit " + podUnit + ": got `failed`"},
		{"canceled", "start systemd unit " + podUnit + ": got `canceled`"},
		{"silent", "start systemd unit " + podUnit + ": no answer after 50ms"},
	} {
		s.EndJobs(c.result)
		s.Calls()
		if err := tree.Ensure(podSlice, Limits{}); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.result, err, c.want)
		}
		if !slices.Contains(s.Calls(), "ResetFailedUnit "+podUnit) {
			t.Errorf("%s: the name is not free for the next try", c.result)
		}
	}
	s.EndJobs("done")
	tree.systemd.Load().jobTime = jobTime
	if err := tree.Ensure(podSlice, Limits{}); err != nil {
		t.Fatal(err)
	}
	s.EndJobs("timeout")
	if err := tree.Remove(podSlice); err == nil || !strings.Contains(err.Error(), "stop systemd unit "+podUnit+": got `timeout`") || !tree.Exists(podSlice) {
		t.Errorf("what systemd keeps stays: %v", err)
	}
}

// TestBusAway: without a bus there is an error, with a new one under its address all is as
// before; systemd has kept the units.
func TestBusAway(t *testing.T) {
	tree, s := withSystemd(t)
	if err := tree.Ensure(podSlice, Limits{}); err != nil {
		t.Fatal(err)
	}
	s.End()
	if err := tree.Ensure(podSlice, Limits{Memory: 1 << 20}); err == nil || !strings.Contains(err.Error(), "connect to systemd over D-Bus") {
		t.Errorf("without a bus: %v", err)
	}
	if err := tree.Remove(podSlice); err == nil || !tree.Exists(podSlice) {
		t.Errorf("without a bus: %v", err)
	}
	s.Begin(t)
	s.Connect(t)
	if err := tree.Ensure(podSlice, Limits{Memory: 1 << 20}); err != nil || s.Properties(podUnit)["MemoryMax"] != uint64(1<<20) {
		t.Errorf("with a new one: %v, %v", err, s.Properties(podUnit))
	}
}

// TestDirectories: without systemd a group is a directory, whatever it is called, and with it
// one that is no slice.
func TestDirectories(t *testing.T) {
	tree, s := withSystemd(t)
	if err := tree.Ensure("/system.service", Limits{Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	tree.UseDirectories()
	if err := tree.Ensure("/system.slice", Limits{Memory: 1 << 20}); err != nil || !tree.Exists("/system.slice") {
		t.Error(err)
	}
	if err := tree.Remove("/other.slice"); err != nil {
		t.Error(err)
	}
	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("%q", calls)
	}
}
