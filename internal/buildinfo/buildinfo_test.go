package buildinfo

import (
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// TestMetric: its labels are upstream's, and what nobody says of the build is this process's.
func TestMetric(t *testing.T) {
	for name, c := range map[string]struct {
		v    *apiversion.Info
		want map[string]string
	}{
		"this program": {Of("v1.36.3+knarr"), map[string]string{"major": "1", "minor": "36", "git_version": "v1.36.3+knarr", "git_tree_state": "clean", "compiler": runtime.Compiler}},
		"little said":  {&apiversion.Info{Major: "2"}, map[string]string{"major": "2", "minor": "", "go_version": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}},
	} {
		r := prometheus.NewRegistry()
		r.MustRegister(Metric(c.v))
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{}
		for _, l := range families[0].Metric[0].Label {
			labels[l.GetName()] = l.GetValue()
		}
		if families[0].GetName() != "kubernetes_build_info" || len(labels) != 9 || families[0].Metric[0].Gauge.GetValue() != 1 {
			t.Errorf("%s: %v", name, families)
		}
		for label, want := range c.want {
			if labels[label] != want {
				t.Errorf("%s: %s is %q, want %q", name, label, labels[label], want)
			}
		}
	}
}
