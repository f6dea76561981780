package controllermanager

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/controlplane/controllermanager/attachdetach"
	"knarr/controlplane/controllermanager/cronjob"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/endpointslicemirroring"
	"knarr/controlplane/controllermanager/ephemeralvolume"
	"knarr/controlplane/controllermanager/garbagecollector"
	"knarr/controlplane/controllermanager/horizontalpodautoscaler"
	"knarr/controlplane/controllermanager/job"
	"knarr/controlplane/controllermanager/nodeipam"
	"knarr/controlplane/controllermanager/nodelifecycle"
	"knarr/controlplane/controllermanager/persistentvolume"
	"knarr/controlplane/controllermanager/podgc"
	"knarr/controlplane/controllermanager/replicaset"
	"knarr/controlplane/controllermanager/rootca"
	"knarr/controlplane/controllermanager/tainteviction"
	"knarr/controlplane/controllermanager/ttlafterfinished"
	"knarr/controlplane/controllermanager/volumemetrics"
	"knarr/internal/runningcontrollers"
)

// metrics are what controllers count beside their queues. They are those of the
// process, as the queues' are: managers that take turns in it count together.
var metrics = []func() []prometheus.Collector{
	attachdetach.Metrics, cronjob.Metrics, endpointslice.Metrics, endpointslicemirroring.Metrics, ephemeralvolume.Metrics,
	garbagecollector.Metrics, horizontalpodautoscaler.Metrics, job.Metrics, nodeipam.Metrics, nodelifecycle.Metrics, persistentvolume.Metrics, podgc.Metrics,
	replicaset.Metrics, rootca.Metrics, tainteviction.Metrics, ttlafterfinished.Metrics, volumemetrics.Metrics,
}

// register makes them known, once.
var register = sync.OnceFunc(func() {
	for _, of := range metrics {
		legacyregistry.RawMustRegister(of()...)
	}
	runningcontrollers.Register()
})
