// Package runningcontrollers is the metric running_managed_controllers: which controllers
// run in this process, and of which manager they are. It reads and writes nothing else.
package runningcontrollers

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

var running = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "running_managed_controllers",
	Help: "[BETA] Indicates where instances of a controller are currently running"}, []string{"manager", "name"})

// Metric is that of the process, whichever of its managers shows it.
func Metric() prometheus.Collector { return running }

// Register makes it known, once: several managers may be in one process, or take turns.
var Register = sync.OnceFunc(func() { legacyregistry.RawMustRegister(running) })

// During has the metric say 1 of a controller for as long as run runs, and 0 afterwards.
func During(manager, name string, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		g := running.WithLabelValues(manager, name)
		g.Set(1)
		defer g.Set(0)
		return run(ctx)
	}
}
