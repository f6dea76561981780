package kubelet

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/podtest"
)

// unified is a tree of version 2 with these files.
func unified(t *testing.T, files map[string]string) *cgroup.Tree {
	t.Helper()
	dir := t.TempDir()
	files["cgroup.controllers"] = "cpu memory pids"
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cgroup.OpenAt(dir)
}

func is[T comparable](t *testing.T, what string, got *T, want T) {
	t.Helper()
	if got == nil || *got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestCompletePod: a pod's group and its disks fill the fields that its containers
// do not.
func TestCompletePod(t *testing.T) {
	k := &Kubelet{cgroups: unified(t, map[string]string{
		"kubepods/pod1/memory.current": "500", "kubepods/pod1/memory.max": "1000", "kubepods/pod1/pids.current": "7",
		"kubepods/pod1/memory.stat": "anon 300\ninactive_file 100\npgfault 9\npgmajfault 2\n", "kubepods/pod1/cpu.stat": "usage_usec 5\n",
	})}
	used := func() *stats.FsStats { return &stats.FsStats{UsedBytes: new(uint64(1))} }
	full := uint64(77)
	p := &stats.PodStats{
		Memory: &stats.MemoryStats{PSI: &stats.PSIStats{}}, EphemeralStorage: used(),
		Containers:  []stats.ContainerStats{{Rootfs: used(), Logs: used()}},
		VolumeStats: []stats.VolumeStats{{FsStats: *used()}, {FsStats: stats.FsStats{CapacityBytes: &full}}},
	}
	k.complete(p, "/kubepods/pod1", k.cgroups.NewReader(), &disk{size: 10, free: 4, inodes: 3, inodesFree: 2}, &disk{size: 20, free: 5})
	is(t, "working set", p.Memory.WorkingSetBytes, 400)
	is(t, "available", p.Memory.AvailableBytes, 600)
	is(t, "rss", p.Memory.RSSBytes, 300)
	is(t, "faults", p.Memory.MajorPageFaults, 2)
	is(t, "processes", p.ProcessStats.ProcessCount, 7)
	is(t, "logs", p.Containers[0].Logs.CapacityBytes, 10)
	is(t, "root file system", p.Containers[0].Rootfs.AvailableBytes, 5)
	is(t, "ephemeral storage", p.EphemeralStorage.InodesFree, 2)
	is(t, "volume on the node's disk", p.VolumeStats[0].CapacityBytes, 10)
	is(t, "volume of its own", p.VolumeStats[1].CapacityBytes, 77)
	if p.Memory.PSI == nil {
		t.Error("how long the pod waited for memory is lost")
	}
}

func TestSystemContainers(t *testing.T) {
	k := &Kubelet{cfg: Config{CgroupParent: "/kubepods"}, began: time.Unix(5, 0), cgroups: unified(t, map[string]string{
		"kubepods/cpu.stat": "usage_usec 5\n", "kubepods/memory.current": "500", "kubepods/memory.max": "max", "kubepods/memory.swap.max": "max",
		"kubepods/cpu.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
	})}
	all := k.systemContainers(k.cgroups.NewReader())
	if len(all) != 1 || all[0].Name != stats.SystemContainerPods {
		t.Fatalf("%+v", all)
	}
	is(t, "cpu", all[0].CPU.UsageCoreNanoSeconds, 5000)
	is(t, "memory", all[0].Memory.UsageBytes, 500)
	if all[0].Memory.AvailableBytes != nil || all[0].Swap.SwapAvailableBytes != nil {
		t.Error("a group without limits has something left")
	}
	if all[0].CPU.PSI == nil || all[0].CPU.PSI.Some.Total != 7000 {
		t.Errorf("how long tasks waited: %+v", all[0].CPU.PSI)
	}
}

func TestNodeFigures(t *testing.T) {
	now := metav1.Now()
	r := rlimit("32768", "1000", "1.36 3.49 4.53 2/3518 3715089", now)
	is(t, "processes there may be", r.MaxPID, 1000)
	is(t, "processes there are", r.NumOfRunningProcesses, 3518)
	if r := rlimit("", "x", "", now); r.MaxPID != nil || r.NumOfRunningProcesses != nil {
		t.Errorf("out of nothing: %+v", r)
	}
	n := nodeNetwork([]byte("  eth1: 1 0 2 0 0 0 0 0 3 0 4 0 0 0 0 0\n  eth0: 10 0 20 0 0 0 0 0 30 0 40 0 0 0 0 0\n"),
		"Iface Destination Gateway Flags RefCnt Use Metric Mask\neth1 0000000A 0 1 0 0 0 00FFFFFF\neth0 00000000 0 3 0 0 0 00000000 0\n", now)
	if n.Name != "eth0" || len(n.Interfaces) != 2 || *n.RxBytes != 10 || *n.TxErrors != 40 {
		t.Errorf("%+v", n)
	}
	all, major := nodeFaults("nr_free 1\npgfault 12\npgmajfault 3\n")
	is(t, "faults", all, 12)
	is(t, "major faults", major, 3)
}

// TestSummaryOfNode: nothing that the node can tell is missing.
func TestSummaryOfNode(t *testing.T) {
	n := newNode(t)
	n.start()
	n.api.addPod(podtest.Pod("web", "a"))
	n.until("ready", n.ready("web"))
	v, err := host{n.k}.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	s := v.(*stats.Summary).Node
	for what, there := range map[string]bool{
		"cpu": s.CPU != nil, "memory": s.Memory != nil && s.Memory.PageFaults != nil, "swap": s.Swap != nil, "rlimit": s.Rlimit != nil,
		"fs": s.Fs != nil, "imageFs": s.Runtime != nil && s.Runtime.ImageFs != nil, "containerFs": s.Runtime != nil && s.Runtime.ContainerFs != nil,
	} {
		if !there {
			t.Errorf("%s is missing", what)
		}
	}
}
