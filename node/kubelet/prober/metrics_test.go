package prober

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMetrics: probes are counted by what came of them, and no longer than their
// container is probed.
func TestMetrics(t *testing.T) {
	bubble(t, func(b *bench) {
		r := prometheus.NewRegistry()
		r.MustRegister(b.Metrics()...)
		counted := func() map[string]float64 {
			all, err := r.Gather()
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]float64{}
			for _, f := range all {
				for _, m := range f.Metric {
					name := f.GetName()
					for _, l := range m.Label {
						name += " " + l.GetValue()
					}
					out[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
			return out
		}
		on := target(func(c *corev1.Container) { c.LivenessProbe = execProbe(nil) })
		on.Pod.ObjectMeta = metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}
		b.Watch(on)
		time.Sleep(15 * time.Second)
		b.code.Store(1)
		time.Sleep(10 * time.Second)
		got := counted()
		if len(got) != 3 || got["prober_probe_total c n p u Liveness successful"] != 2 ||
			got["prober_probe_total c n p u Liveness failed"] != 1 || got["prober_probe_duration_seconds c n p Liveness"] != 2 {
			t.Errorf("counted %v", got)
		}
		b.Forget(on.ContainerID)
		if got := counted(); len(got) > 0 {
			t.Errorf("of a container that is gone %v is left", got)
		}
	})
}
