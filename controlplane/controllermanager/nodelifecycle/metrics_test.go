package nodelifecycle

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestZoneMetrics: zones are told under upstream's labels, and one that is gone is not.
func TestZoneMetrics(t *testing.T) {
	tally := newTally(defaults())
	check := func(size, health, unhealthy float64) {
		t.Helper()
		const label = "r1:\x00:z1"
		for name, n := range map[string][2]float64{
			"size":      {valueOf(zoneSize.WithLabelValues(label)), size},
			"health":    {valueOf(zoneHealth.WithLabelValues(label)), health},
			"unhealthy": {valueOf(unhealthyNodes.WithLabelValues(label)), unhealthy},
		} {
			if n[0] != n[1] {
				t.Errorf("%s is %v, want %v", name, n[0], n[1])
			}
		}
	}
	for i, name := range []string{"a", "b", "c", "d"} {
		tally.set(name, &counted{"r1/z1", i > 0})
	}
	check(4, 75, 1)
	for _, name := range []string{"a", "b", "c", "d"} {
		tally.set(name, nil)
	}
	for i := range 100 {
		tally.set("a", &counted{fmt.Sprint("r1/made-up-", i), true})
	}
	tally.set("a", nil)
	series := make(chan prometheus.Metric, 1000)
	for _, c := range []prometheus.Collector{zoneSize, zoneHealth, unhealthyNodes, evictions} {
		c.Collect(series)
	}
	if len(series) > 0 {
		t.Errorf("%d series of zones without nodes", len(series))
	}
	if zoneLabel("/") != "" {
		t.Errorf("nodes without a zone are of %q", zoneLabel("/"))
	}
}

// valueOf is what a counter or a gauge counts.
func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		return -1
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}
