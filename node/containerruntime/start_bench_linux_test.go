package containerruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// phases adds up what the steps of starting pods take.
type phases struct{ since time.Time }

var (
	spentLock sync.Mutex
	spent     = map[string]time.Duration{}
)

func (p *phases) end(name string) {
	spentLock.Lock()
	defer spentLock.Unlock()
	spent[name] += time.Since(p.since)
	p.since = time.Now()
}

// An account is the control group of this process and of every program that it
// starts, but for what of them enters the groups of pods.
type account struct{ groups []string }

func openAccount(b *testing.B, n *node) account {
	b.Helper()
	group := fmt.Sprintf("/knarr-bench-%d", os.Getpid())
	for _, top := range hierarchies("/sys/fs/cgroup") {
		if os.Mkdir(top+group, 0o755) != nil {
			continue // not a hierarchy
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if v, err := os.ReadFile(filepath.Join(top, f)); err == nil {
				_ = os.WriteFile(top+group+"/"+f, v, 0)
			}
		}
		if err := os.WriteFile(top+group+"/cgroup.procs", []byte("0"), 0); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = os.WriteFile(top+"/cgroup.procs", []byte("0"), 0)
			if err := os.Remove(top + group); err != nil {
				b.Error(err)
			}
		})
	}
	return account{[]string{group, n.config.CgroupParent}}
}

// cpu is what was used so far, by processes that ended too.
func (a account) cpu() (used time.Duration) {
	for _, group := range a.groups {
		if v, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + group + "/cpuacct.usage"); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(v)), 10, 64)
			used += time.Duration(n)
			continue
		}
		v, _ := os.ReadFile("/sys/fs/cgroup" + group + "/cpu.stat")
		_, rest, _ := strings.Cut(string(v), "usage_usec ")
		first, _, _ := strings.Cut(rest, "\n")
		n, _ := strconv.ParseInt(first, 10, 64)
		used += time.Duration(n) * time.Microsecond
	}
	return used
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkPod starts pods of one container, one after the other: how long the
// CRI's calls take, and the CPU time of all processes for a start and for an end.
func BenchmarkPod(b *testing.B) {
	if isolated(b) {
		return
	}
	ctx := b.Context()
	n := newNode(b)
	used := openAccount(b, n)
	var took []time.Duration
	var starts, ends time.Duration
	for i := 0; b.Loop(); i++ {
		start, before := time.Now(), used.cpu()
		sandbox, _, err := n.pod(ctx, fmt.Sprint("pod", i))
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		b.StopTimer()
		middle := used.cpu()
		if err := n.remove(ctx, sandbox); err != nil {
			b.Fatal(err)
		}
		starts, ends = starts+middle-before, ends+used.cpu()-middle
		b.StartTimer()
	}
	for name, d := range spent {
		b.ReportMetric(ms(d)/float64(len(took)), name+"-ms")
	}
	slices.Sort(took)
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*9/10]), "p90-ms")
	b.ReportMetric(ms(starts)/float64(len(took)), "cpu-start-ms")
	b.ReportMetric(ms(ends)/float64(len(took)), "cpu-end-ms")
}

// BenchmarkPodsAtOnce starts 60 pods, so many of them at a time.
func BenchmarkPodsAtOnce(b *testing.B) {
	for _, most := range []int{60, 4} {
		b.Run(strconv.Itoa(most), func(b *testing.B) {
			if isolated(b) {
				return
			}
			ctx := b.Context()
			n := newNode(b)
			used := openAccount(b, n)
			var cpu time.Duration
			for i := 0; b.Loop(); i++ {
				before := used.cpu()
				sandboxes := n.atOnce(ctx, b, 60, most, i)
				cpu += used.cpu() - before
				b.StopTimer()
				b.ReportMetric(n.shimMemory(b)/60, "shim-kB")
				for _, s := range sandboxes {
					if err := n.remove(ctx, s); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
			}
			b.ReportMetric(ms(cpu)/60/float64(b.N), "cpu-start-ms")
		})
	}
}

// shimMemory is what the shims hold, in kB: shared pages by their share.
func (n *node) shimMemory(b *testing.B) (sum float64) {
	b.Helper()
	all, err := processes()
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range all {
		if !isShim(p, n.config.withDefaultsForTest(b).Socket()) {
			continue
		}
		rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid))
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); f[0] == "Pss:" {
				kb, _ := strconv.ParseFloat(f[1], 64)
				sum += kb
			}
		}
	}
	return sum
}

func (n *node) atOnce(ctx context.Context, b *testing.B, count, most, round int) []string {
	b.Helper()
	var wg sync.WaitGroup
	sandboxes, errs := make([]string, count), make([]error, count)
	slots := make(chan struct{}, most)
	for i := range count {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			sandboxes[i], _, errs[i] = n.pod(ctx, fmt.Sprintf("pod%d-%d", round, i))
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
	return sandboxes
}

// BenchmarkExit ends the first process of a container from outside: how long until the
// runtime's event of it, which is what the kubelet waits for.
func BenchmarkExit(b *testing.B) {
	if isolated(b) {
		return
	}
	ctx := b.Context()
	n := newNode(b)
	events, err := n.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan string, 16)
	go func() {
		for {
			e, err := events.Recv()
			if err != nil {
				return
			}
			if e.ContainerEventType == cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
				ended <- e.ContainerId
			}
		}
	}()
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		sandbox, container, err := n.pod(ctx, fmt.Sprint("pod", i))
		if err != nil {
			b.Fatal(err)
		}
		s, err := n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container, Verbose: true})
		if err != nil {
			b.Fatal(err)
		}
		var info struct{ Pid int }
		if err := json.Unmarshal([]byte(s.Info["info"]), &info); err != nil || info.Pid <= 1 {
			b.Fatal(info.Pid, err)
		}
		b.StartTimer()
		start := time.Now()
		if err := syscall.Kill(info.Pid, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		for id := ""; id != container; {
			select {
			case id = <-ended:
			case <-time.After(10 * time.Second):
				b.Fatal("there is no event of the end")
			}
		}
		took = append(took, time.Since(start))
		b.StopTimer()
		if err := n.remove(ctx, sandbox); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
}
