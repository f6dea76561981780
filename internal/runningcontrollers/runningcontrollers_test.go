package runningcontrollers

import (
	"context"
	"errors"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// TestDuring: the metric is 1 while a controller runs, 0 once it has ended, and of one
// manager only.
func TestDuring(t *testing.T) {
	Register()
	Register() // a second manager in the process
	failed := errors.New("failed")
	err := During("m", "c", func(context.Context) error {
		if n := shown(t, "m", "c"); n != 1 {
			t.Errorf("%v while it runs, want 1", n)
		}
		if n := shown(t, "other", "c"); n != -1 {
			t.Errorf("%v of another manager, want nothing", n)
		}
		return failed
	})(t.Context())
	if err != failed {
		t.Errorf("got %v, want what the controller returned", err)
	}
	if n := shown(t, "m", "c"); n != 0 {
		t.Errorf("%v once it has ended, want 0", n)
	}
}

// shown is what the process shows; -1: nothing.
func shown(t *testing.T, manager, name string) float64 {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != "running_managed_controllers" {
			continue
		}
		for _, m := range f.Metric {
			if is(m.Label, "manager", manager) && is(m.Label, "name", name) {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func is(labels []*dto.LabelPair, name, value string) bool {
	for _, l := range labels {
		if l.GetName() == name {
			return l.GetValue() == value
		}
	}
	return false
}
