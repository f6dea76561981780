package kubelet

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/node/kubelet/cgroup"
)

// metricsText is what a scrape answers.
func metricsText(t *testing.T, usage func(context.Context) (*stats.Summary, error)) string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(resourceCollector{usage})
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range all {
		f.Help = nil
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestResourceMetrics(t *testing.T) {
	at := func(seconds int64) metav1.Time { return metav1.Unix(seconds, 0) }
	cpu := func(at metav1.Time, v uint64) *stats.CPUStats {
		return &stats.CPUStats{Time: at, UsageCoreNanoSeconds: &v}
	}
	memory := func(at metav1.Time, v uint64) *stats.MemoryStats {
		return &stats.MemoryStats{Time: at, WorkingSetBytes: &v}
	}
	swap := &stats.SwapStats{Time: at(4), SwapUsageBytes: new(uint64(10)), SwapAvailableBytes: new(uint64(30))}
	s := &stats.Summary{
		Node: stats.NodeStats{CPU: cpu(at(1), 2e9), Memory: memory(at(1), 100)},
		Pods: []stats.PodStats{{
			PodRef: stats.PodReference{Name: "p", Namespace: "n"}, CPU: cpu(at(2), 3e9), Memory: memory(at(2), 200), Swap: podSwap([]stats.ContainerStats{{Swap: swap}, {Swap: swap}}),
			Containers: []stats.ContainerStats{{Name: "c", StartTime: at(100), CPU: cpu(at(3), 5e8), Memory: memory(at(3), 50), Swap: swap}, {Name: "unknown"}},
		}},
	}
	const want = `# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 0.5 3000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="c",namespace="n",pod="p"} 50 3000
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="c",namespace="n",pod="p"} 100
# TYPE container_swap_limit_bytes gauge
container_swap_limit_bytes{container="c",namespace="n",pod="p"} 40 4000
# TYPE container_swap_usage_bytes gauge
container_swap_usage_bytes{container="c",namespace="n",pod="p"} 10 4000
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 2 1000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 100 1000
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="n",pod="p"} 3 2000
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="n",pod="p"} 200 2000
# TYPE pod_swap_usage_bytes gauge
pod_swap_usage_bytes{namespace="n",pod="p"} 20 4000
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`
	if got := metricsText(t, func(context.Context) (*stats.Summary, error) { return s, nil }); got != want {
		t.Errorf("got\n%s", got)
	}
	failed := metricsText(t, func(context.Context) (*stats.Summary, error) { return nil, errors.New("no runtime") })
	if failed != "# TYPE resource_scrape_error gauge\nresource_scrape_error 1\n" {
		t.Errorf("without a runtime:\n%s", failed)
	}
}

// TestSwapped: of what the runtime says nothing the control group of version 2 does.
func TestSwapped(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cgroup.controllers": "memory\n", "pod/c/memory.swap.current": "4096\n", "pod/c/memory.swap.max": "8192\n",
		"pod/free/memory.swap.current": "4096\n", "pod/free/memory.swap.max": "max\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	k := &Kubelet{cgroups: cgroup.OpenAt(dir)}
	of := func(group string, known *stats.SwapStats) *stats.SwapStats {
		c := stats.ContainerStats{Swap: known}
		k.swapped(&c, group)
		return c.Swap
	}
	if s := of("/pod/c", nil); s == nil || *s.SwapUsageBytes != 4096 || *s.SwapAvailableBytes != 4096 {
		t.Errorf("%+v", s)
	}
	if s := of("/pod/free", nil); s == nil || *s.SwapUsageBytes != 4096 || s.SwapAvailableBytes != nil {
		t.Errorf("without a limit: %+v", s)
	}
	if s := of("/pod/gone", nil); s != nil {
		t.Errorf("of a group that is gone: %+v", s)
	}
	if was := (&stats.SwapStats{}); of("/pod/c", was) != was {
		t.Error("what the runtime says is replaced")
	}
}

// TestNoneSwapped: a container is known to use no swap only where there is none.
func TestNoneSwapped(t *testing.T) {
	node := func(used, left uint64) *stats.SwapStats {
		return &stats.SwapStats{SwapUsageBytes: &used, SwapAvailableBytes: &left}
	}
	memory, at := &stats.MemoryStats{Time: metav1.Unix(7, 0)}, metav1.Unix(7, 0)
	for _, c := range []struct {
		name string
		is   stats.ContainerStats
		node *stats.SwapStats
		want *stats.SwapStats
	}{
		{"no swap", stats.ContainerStats{Memory: memory}, node(0, 0), &stats.SwapStats{Time: at, SwapUsageBytes: new(uint64(0))}},
		{"some, not counted", stats.ContainerStats{Memory: memory}, node(0, 1), nil},
		{"not known", stats.ContainerStats{Memory: memory}, nil, nil},
		{"nothing known of the container", stats.ContainerStats{}, node(0, 0), nil},
		{"what the runtime says stays", stats.ContainerStats{Memory: memory, Swap: node(3, 4)}, node(0, 0), node(3, 4)},
	} {
		if noneSwapped(&c.is, c.node); !reflect.DeepEqual(c.is.Swap, c.want) {
			t.Errorf("%s: %+v", c.name, c.is.Swap)
		}
	}
}
