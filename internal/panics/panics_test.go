package panics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
)

// TestMetric: a panic is counted by what it ended.
func TestMetric(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(Metric())
	run.CountPanic("test metric")
	run.CountPanic("test metric")
	all, err := r.Gather()
	if err != nil || len(all) != 1 || all[0].GetName() != "knarr_panics_total" {
		t.Fatalf("%v, %v", all, err)
	}
	for _, m := range all[0].Metric {
		if m.Label[0].GetValue() == "test metric" && m.GetCounter().GetValue() == 2 {
			return
		}
	}
	t.Errorf("not counted: %v", all[0])
}
