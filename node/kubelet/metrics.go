package kubelet

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*

	"knarr/internal/buildinfo"
	"knarr/internal/features"
	"knarr/internal/panics"
	"knarr/node/kubelet/certificates"
	"knarr/node/kubelet/configuration"
)

// metrics are what is counted of a kubelet's work, under upstream's names. Each
// kubelet has its own: several run in one process.
type metrics struct {
	registry *prometheus.Registry

	runtimeCalls, runtimeErrors               *prometheus.CounterVec
	runtimeTook, sandboxTook                  *prometheus.HistogramVec
	sandboxErrors                             *prometheus.CounterVec
	podsStarted, podsFailed                   prometheus.Counter
	usersStarted, usersFailed                 prometheus.Counter // of pods with users of their own
	containersStarted, containersFailed       *prometheus.CounterVec
	containersTerminated                      *prometheus.CounterVec
	workerTook, cgroupTook                    *prometheus.HistogramVec
	volumes                                   *volumeMetrics
	losingSupport                             *prometheus.GaugeVec
	podStart, workerStart                     prometheus.Histogram
	containersPerPod                          prometheus.Histogram
	orphanedPods                              prometheus.Counter
	orphanDirs, orphanDirErrors               prometheus.Gauge
	restartedPods                             *prometheus.CounterVec
	statusTook, relistTook, relistPod, relist prometheus.Histogram
	lastRelist                                prometheus.Gauge
	memoryMin, memoryLow                      prometheus.Gauge // shown with the feature MemoryQoS
	evictions, rejections, imagesRemoved      *prometheus.CounterVec
	evictionAge                               *prometheus.HistogramVec
	streams, streamErrors                     prometheus.Counter
	eventDelay                                prometheus.Histogram
	managers                                  managerMetrics
	images                                    imageMetrics
	starts                                    *startMetrics
	resizes                                   resizeMetrics
	hookFallbacks, sleepsCut                  prometheus.Counter
	shutdownBegan, shutdownEnded              prometheus.Gauge
	preemptions                               *prometheus.CounterVec
	pluginsRegistered                         *prometheus.CounterVec
	deviceTook, providerTook                  *prometheus.HistogramVec
	providerErrors                            *prometheus.CounterVec
	endpointRequests, endpointErrors          map[string]*prometheus.CounterVec // of pods' resources, by method
	requests                                  *prometheus.CounterVec
	requestTook                               *prometheus.HistogramVec
	inFlight                                  *prometheus.GaugeVec
}

var (
	startBuckets  = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	statusBuckets = []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60}
	volumeBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	ofRequest     = []string{"method", "path", "server_type", "long_running"}
	ofOperation   = []string{"operation_type"}
)

func newMetrics(others ...prometheus.Collector) *metrics {
	r := prometheus.NewRegistry()
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help}, labels)
		r.MustRegister(v)
		return v
	}
	took := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: "[ALPHA] " + help, Buckets: buckets}, labels)
		r.MustRegister(v)
		return v
	}
	single := func(name, help string, buckets []float64) prometheus.Histogram {
		v := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: "[ALPHA] " + help, Buckets: buckets})
		r.MustRegister(v)
		return v
	}
	m := &metrics{
		registry:      r,
		runtimeCalls:  count("kubelet_runtime_operations_total", "Calls to the container runtime", ofOperation...),
		runtimeErrors: count("kubelet_runtime_operations_errors_total", "Calls to the container runtime that failed", ofOperation...),
		runtimeTook: took("kubelet_runtime_operations_duration_seconds", "How long calls to the container runtime took",
			prometheus.ExponentialBuckets(.005, 2.5, 14), ofOperation...),
		sandboxTook:       took("kubelet_run_podsandbox_duration_seconds", "How long sandboxes took to run", nil, "runtime_handler"),
		sandboxErrors:     count("kubelet_run_podsandbox_errors_total", "Sandboxes that could not be run", "runtime_handler"),
		podsStarted:       count("kubelet_started_pods_total", "Pods that were started").WithLabelValues(),
		podsFailed:        count("kubelet_started_pods_errors_total", "Pods that could not be started").WithLabelValues(),
		usersStarted:      count("kubelet_started_user_namespaced_pods_total", "Pods with users of their own that were started").WithLabelValues(),
		usersFailed:       count("kubelet_started_user_namespaced_pods_errors_total", "Pods with users of their own that could not be started").WithLabelValues(),
		containersStarted: count("kubelet_started_containers_total", "Containers that were started", "container_type"),
		containersFailed:  count("kubelet_started_containers_errors_total", "Containers that could not be started", "container_type", "code"),
		workerTook:        took("kubelet_pod_worker_duration_seconds", "How long a pod's worker took to look at it once", nil, ofOperation...),
		cgroupTook:        took("kubelet_cgroup_manager_duration_seconds", "How long pods' control groups took to be written", nil, ofOperation...),
		podStart:          single("kubelet_pod_start_duration_seconds", "How long pods took from the kubelet's first sight of them until they ran", startBuckets),
		workerStart:       single("kubelet_pod_worker_start_duration_seconds", "How long pods waited for their worker", nil),
		statusTook:        single("kubelet_pod_status_sync_duration_seconds", "How long writes of pods' status took", statusBuckets),
		relistTook:        single("kubelet_pleg_relist_duration_seconds", "How long listing a pod's containers took", nil),
		relistPod:         single("kubelet_pleg_pod_relist_duration_seconds", "How long listing a pod's containers took", nil),
		relist:            single("kubelet_pleg_relist_interval_seconds", "How far apart the listings of all pods are", nil),
		lastRelist:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_pleg_last_seen_seconds", Help: "[ALPHA] When all pods were listed last, seconds since 1970"}),
		memoryMin:         prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_memory_qos_node_memory_min_bytes", Help: "[ALPHA] Memory that the kernel never takes from Guaranteed pods"}),
		memoryLow:         prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_memory_qos_node_memory_low_bytes", Help: "[ALPHA] Memory that the kernel takes last from Burstable pods"}),
		evictions:         count("kubelet_evictions", "Pods that were evicted", "eviction_signal"),
		rejections:        count("kubelet_admission_rejections_total", "Pods that were not admitted", "reason"),
		imagesRemoved:     count("kubelet_image_garbage_collected_total", "Images that were removed", "reason"),
		requests:          count("kubelet_http_requests_total", "Requests", ofRequest...),
		requestTook:       took("kubelet_http_requests_duration_seconds", "How long requests took", nil, ofRequest...),
		inFlight:          prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_http_inflight_requests", Help: "[ALPHA] Requests under way"}, ofRequest),
	}
	m.containersTerminated = count("kubelet_terminated_containers_total", "Containers that ended", "container_type", "exit_code", "reason")
	m.shutdownBegan = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_start_time_seconds", Help: "[ALPHA] When the last shutdown of the node began, seconds since 1970"})
	m.shutdownEnded = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_end_time_seconds", Help: "[ALPHA] When the pods had ended, seconds since 1970"})
	m.containersPerPod = single("kubelet_containers_per_pod_count", "How many containers the pods have that were begun", prometheus.ExponentialBuckets(1, 2, 5))
	m.orphanedPods = count("kubelet_orphaned_runtime_pods_total", "Pods that the runtime had and nobody knew").WithLabelValues()
	m.orphanDirs = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_orphan_pod_cleaned_volumes", Help: "[ALPHA] Directories of pods that nobody knew, when they were looked for last"})
	m.orphanDirErrors = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_orphan_pod_cleaned_volumes_errors", Help: "[ALPHA] Those of them that could not be removed"})
	m.restartedPods = count("kubelet_restarted_pods_total", "Pods that came again under the same UID while they ended", "static")
	r.MustRegister(m.shutdownBegan, m.shutdownEnded, m.orphanDirs, m.orphanDirErrors)
	m.managers, m.images, m.starts = newManagerMetrics(r), newImageMetrics(r), newStartMetrics(r)
	m.resizes, m.volumes = newResizeMetrics(r), newVolumeMetrics(r)
	m.losingSupport = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_cri_losing_support",
		Help: "[ALPHA] The version of Kubernetes with which the container runtime will not do any more unless it is replaced"}, []string{"version"})
	r.MustRegister(m.losingSupport, certificates.ClientFailures, certificates.ServingFailures)
	m.hookFallbacks = count("kubelet_lifecycle_handler_http_fallbacks_total", "Hooks that were asked by HTTPS, answered by HTTP, and were asked so again").WithLabelValues()
	m.sleepsCut = count("kubelet_sleep_action_terminated_early_total", "Hooks that sleep and were ended before they had slept enough").WithLabelValues()
	m.evictionAge = took("kubelet_eviction_stats_age_seconds", "How old what was measured was when a pod was evicted for it", nil, "eviction_signal")
	m.streams = count("kubelet_evented_pleg_connection_success_count", "Streams of the runtime's events that were begun").WithLabelValues()
	m.streamErrors = count("kubelet_evented_pleg_connection_error_count", "Streams of the runtime's events that could not be begun or have ended").WithLabelValues()
	m.eventDelay = single("kubelet_evented_pleg_connection_latency_seconds", "How old the runtime's events were when they came", nil)
	m.preemptions = count("kubelet_preemptions", "Pods that were preempted", "preemption_signal")
	m.pluginsRegistered = count("kubelet_device_plugin_registration_total", "Registrations of device plugins", "resource_name")
	m.deviceTook = took("kubelet_device_plugin_alloc_duration_seconds", "How long device plugins took to allocate",
		[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "resource_name")
	m.providerErrors = count("kubelet_credential_provider_plugin_errors_total", "Number of errors from credential provider plugin", "plugin_name")
	m.providerTook = took("kubelet_credential_provider_plugin_duration", "Duration of execution in seconds for credential provider plugin", nil, "plugin_name")
	m.endpointRequests, m.endpointErrors = map[string]*prometheus.CounterVec{
		"": count("kubelet_pod_resources_endpoint_requests_total", "Requests for the resources of pods", "server_api_version"),
	}, map[string]*prometheus.CounterVec{}
	for _, method := range []string{"list", "get", "get_allocatable"} {
		m.endpointRequests[method] = count("kubelet_pod_resources_endpoint_requests_"+method, "Requests for the resources of pods", "server_api_version")
		m.endpointErrors[method] = count("kubelet_pod_resources_endpoint_errors_"+method, "Requests for the resources of pods that failed", "server_api_version")
	}
	r.MustRegister(others...)
	r.MustRegister(m.lastRelist, m.inFlight, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Metrics are the handlers of metrics by path.
func (h host) Metrics() map[string]http.Handler {
	k := h.k
	now := prometheus.NewRegistry()
	now.MustRegister(k.metricsOfNow()...)
	own := prometheus.Gatherers{k.metrics.registry, now, ofProcess{"rest_client_"}}
	resources, probes := prometheus.NewRegistry(), prometheus.NewRegistry()
	resources.MustRegister(resourceCollector{k.usage})
	probes.MustRegister(k.prober.Metrics()...)
	options := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4}
	return map[string]http.Handler{
		"/metrics":          promhttp.HandlerFor(own, options),
		"/metrics/slis":     promhttp.HandlerFor(k.health.Metrics(), options),
		"/metrics/resource": promhttp.HandlerFor(resources, options),
		"/metrics/cadvisor": k.newCadvisor(),
		"/metrics/probes":   promhttp.HandlerFor(probes, options),
	}
}

// metricsOfNow tell of what is read at a scrape.
func (k *Kubelet) metricsOfNow() []prometheus.Collector {
	return []prometheus.Collector{volumeCollector{k}, nodeCollector{k}, cpuCollector{k}, logCollector{k},
		buildinfo.Metric(buildinfo.Of(k.cfg.Version)), panics.Metric(), features.Metric(k.cfg.Settings.FeatureGates, configuration.Gates)}
}

// ofProcess are those of the whole process whose names begin alike: client-go
// counts requests for all clients of a process together.
type ofProcess struct{ prefix string }

// Gather reads them.
func (p ofProcess) Gather() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	var out []*dto.MetricFamily
	for _, f := range all {
		if name := f.GetName(); len(name) > len(p.prefix) && name[:len(p.prefix)] == p.prefix {
			out = append(out, f)
		}
	}
	return out, err
}

func yesNo(b bool) string { return strconv.FormatBool(b) }
