package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// managersShow compares what the managers count, without the times and what is 0, with
// want: lines as "name label... value", without what all names begin with.
func (n *node) managersShow(t *testing.T, want ...string) {
	t.Helper()
	now := prometheus.NewRegistry()
	now.MustRegister(cpuCollector{n.k})
	families, err := prometheus.Gatherers{n.k.metrics.registry, now}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "kubelet_")
		if !slices.ContainsFunc([]string{"cpu_manager_", "memory_manager_", "topology_manager_", "container_aligned_"}, func(of string) bool { return strings.HasPrefix(name, of) }) {
			continue
		}
		for _, s := range f.GetMetric() {
			line := name
			for _, l := range s.GetLabel() {
				line += " " + l.GetValue()
			}
			if v := s.GetGauge().GetValue() + s.GetCounter().GetValue(); v != 0 {
				got = append(got, fmt.Sprint(line, " ", v))
			}
		}
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("shown are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestManagersAtFirst: a counter is there before there is something to count.
func TestManagersAtFirst(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newManagerMetrics(r)
	shown := func() (out []string) {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			out = append(out, fmt.Sprint(len(f.GetMetric()), strings.TrimPrefix(f.GetName(), "kubelet")))
		}
		return out
	}
	want := []string{
		"2_container_aligned_compute_resources_count", "2_container_aligned_compute_resources_failure_count",
		"1_cpu_manager_pinning_errors_total", "1_cpu_manager_pinning_requests_total",
		"1_memory_manager_pinning_errors_total", "1_memory_manager_pinning_requests_total", "1_topology_manager_admission_duration_ms",
		"1_topology_manager_admission_errors_total", "1_topology_manager_admission_requests_total",
	}
	if got := shown(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	m.showStatic()
	if got := shown(); got[0] != "4_container_aligned_compute_resources_count" || got[1] != "3_container_aligned_compute_resources_failure_count" {
		t.Errorf("with the policy static %q", got[:2])
	}
}
