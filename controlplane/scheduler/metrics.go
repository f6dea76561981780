package scheduler

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/internal/run"
)

const metricsPrefix = "scheduler_"

var (
	fromMillisecond      = prometheus.ExponentialBuckets(0.001, 2, 15)
	fromTenthMillisecond = prometheus.ExponentialBuckets(0.0001, 2, 12)
	fromTenMicroseconds  = prometheus.ExponentialBuckets(0.00001, 1.5, 20)
)

// What is counted and timed, under upstream's names. It is the process's: terms that
// take turns in it count together.
var (
	scheduleAttempts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "schedule_attempts_total",
		Help: "[STABLE] Attempts to give a pod a node, by result: scheduled, unschedulable or error"}, []string{"result", "profile"})
	attemptTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "scheduling_attempt_duration_seconds",
		Help: "[STABLE] Time of an attempt, with the binding if there was one", Buckets: fromMillisecond}, []string{"result", "profile"})
	algorithmTook = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "scheduling_algorithm_duration_seconds",
		Help: "[ALPHA] Time of an attempt until the node is found, or found not to be", Buckets: fromMillisecond})
	schedulingSLI = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "pod_scheduling_sli_duration_seconds",
		Help: "[BETA] Time from a pod's first place in the active queue to its binding, by attempts", Buckets: prometheus.ExponentialBuckets(0.01, 2, 20)}, []string{"attempts"})
	attemptsOfPod = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "pod_scheduling_attempts",
		Help: "[STABLE] Attempts that bound pods took", Buckets: prometheus.ExponentialBuckets(1, 2, 5)})
	scheduledAfterFlush = prometheus.NewCounter(prometheus.CounterOpts{Name: metricsPrefix + "pod_scheduled_after_flush_total",
		Help: "[ALPHA] Pods bound by an attempt that no event asked for: they had waited for the longest time"})
	pointTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "framework_extension_point_duration_seconds",
		Help: "[STABLE] Time of all plugins of an extension point", Buckets: fromTenthMillisecond}, []string{"extension_point", "status", "profile"})
	pluginTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "plugin_execution_duration_seconds",
		Help: "[ALPHA] Time of one call of a plugin, in a tenth of the attempts", Buckets: fromTenMicroseconds}, []string{"plugin", "extension_point", "status"})
	evaluations = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "plugin_evaluation_total",
		Help: "[BETA] Calls of a plugin's PreFilter, Filter, PreScore and Score"}, []string{"plugin", "extension_point", "profile"})
	incomingPods = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "queue_incoming_pods_total",
		Help: "[STABLE] Pods that came into a queue, by the event that moved them"}, []string{"queue", "event"})
	eventTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "event_handling_duration_seconds",
		Help: "[ALPHA] Time to take in what happened in the cluster", Buckets: fromTenthMillisecond}, []string{"event"})
	preemptionAttempts = prometheus.NewCounter(prometheus.CounterOpts{Name: metricsPrefix + "preemption_attempts_total",
		Help: "[STABLE] Attempts to make room by preemption"})
	preemptionVictims = prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "preemption_victims",
		Help: "[STABLE] Pods chosen to be preempted for one pod", Buckets: prometheus.ExponentialBuckets(1, 2, 7)})
	volumeErrors = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "volume_scheduling_stage_error_total",
		Help: "[ALPHA] Failures to give pods their volumes, by stage: assume or bind"}, []string{"operation"})
)

// Metrics are what is counted here.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{scheduleAttempts, attemptTook, algorithmTook, schedulingSLI, attemptsOfPod, scheduledAfterFlush,
		pointTook, pluginTook, evaluations, incomingPods, eventTook, preemptionAttempts, preemptionVictims, volumeErrors, running}
}

// register makes them known, once.
var register = sync.OnceFunc(func() { legacyregistry.RawMustRegister(Metrics()...) })

// running are the terms of the process.
var running = &terms{all: map[*term]struct{}{}}

// terms tell, whenever metrics are read, what is in their queues and their cluster.
// Nothing is counted on the way there, and nothing can be counted wrong.
type terms struct {
	mu  sync.Mutex
	all map[*term]struct{}
}

var (
	pendingPods = prometheus.NewDesc(metricsPrefix+"pending_pods",
		"[STABLE] Pods without a node, by queue: active are to be tried now, backoff soon, unschedulable when something happens, gated not before their gates are gone", []string{"queue"}, nil)
	unschedulablePods = prometheus.NewDesc(metricsPrefix+"unschedulable_pods",
		"[BETA] Pods without a node, by each plugin that refused them: a pod may be counted several times", []string{"plugin", "profile"}, nil)
	cacheSize = prometheus.NewDesc(metricsPrefix+"cache_size",
		"[ALPHA] Nodes, placed pods, and those of them whose binding has not been seen yet", []string{"type"}, nil)
	goroutines = prometheus.NewDesc(metricsPrefix+"goroutines",
		"[BETA] Goroutines, by what they do: binding writes bindings and the status of refused pods", []string{"operation"}, nil)
)

// Describe implements prometheus.Collector.
func (t *terms) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pendingPods, unschedulablePods, cacheSize, goroutines} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (t *terms) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("scheduler: metrics of the queue")
	n := census{queues: map[string]int{}, refused: map[refusedBy]int{}}
	t.mu.Lock()
	for one := range t.all {
		one.count(&n)
	}
	t.mu.Unlock()
	tell := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, name := range places {
		if name != "" {
			tell(pendingPods, n.queues[name], name)
		}
	}
	for by, pods := range n.refused {
		tell(unschedulablePods, pods, by.plugin, by.profile)
	}
	tell(cacheSize, n.nodes, "nodes")
	tell(cacheSize, n.pods, "pods")
	tell(cacheSize, n.assumed, "assumed_pods")
	tell(goroutines, n.workers, "binding")
}

// enter counts a term in until leave is called.
func (t *terms) enter(one *term) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[one] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.all, one)
	}
}

// A census is how many of what there are.
type census struct {
	queues                        map[string]int
	refused                       map[refusedBy]int
	nodes, pods, assumed, workers int
}

type refusedBy struct{ plugin, profile string }

// count adds what the term knows.
func (s *term) count(n *census) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queue.pods {
		if q.where == inFlight {
			continue
		}
		n.queues[places[q.where]]++
		for i, plugin := range q.refusedBy {
			if !slices.Contains(q.refusedBy[:i], plugin) {
				n.refused[refusedBy{plugin, q.Pod.Pod.Spec.SchedulerName}]++
			}
		}
	}
	n.nodes += s.cluster.Live
	n.pods += s.cluster.Placed()
	n.assumed += len(s.assumed)
	n.workers += s.writes.busy()
}
