package job

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

const metricsPrefix = "job_controller_"

var (
	bySync   = []string{"completion_mode", "result", "action"}
	syncTook = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricsPrefix + "job_sync_duration_seconds",
		Help: "[STABLE] How long looks at a Job took", Buckets: prometheus.ExponentialBuckets(0.004, 2, 15)}, bySync)
	syncs = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "job_syncs_total",
		Help: "[STABLE] Looks at a Job, by what was done: reconciling, tracking, pods_created, pods_deleted"}, bySync)
	finishedJobs = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "jobs_finished_total",
		Help: "[STABLE] Jobs that finished"}, []string{"completion_mode", "result", "reason"})
	finishedIndexes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "job_finished_indexes_total",
		Help: "[ALPHA] Indexes of Jobs that finished"}, []string{"status", "backoffLimit"})
	policyFailures = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "pod_failures_handled_by_failure_policy_total",
		Help: "[BETA] Failed pods about which a rule of the failure policy said something"}, []string{"action"})
	finalizers = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "terminated_pods_tracking_finalizer_total",
		Help: "[BETA] Pods that ended while they had the tracking finalizer, and that lost it or are gone"}, []string{"event"})
	external = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "jobs_by_external_controller_total",
		Help: "[ALPHA] Jobs that another controller manages"}, []string{"controller_name"})
	createdPods = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "job_pods_creation_total",
		Help: "[ALPHA] Pods that were made: new, recreate_failed (in place of one that failed, as the Job wants it), recreate_terminating_or_failed; by whether that succeeded or failed"}, []string{"reason", "status"})
	finishedPods = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "job_pods_finished_total",
		Help: "[STABLE] Pods of Jobs that finished and are counted"}, []string{"completion_mode", "result"})
)

// managers bounds the names of controllers that are counted apart: users make them up.
type managers struct {
	mu   sync.Mutex
	seen map[string]bool
}

// mostManagers is how many are counted apart; the rest are "other".
const mostManagers = 100

var others managers

func (m *managers) label(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.seen[name] {
		if len(m.seen) >= mostManagers {
			return "other"
		}
		if m.seen == nil {
			m.seen = map[string]bool{}
		}
		m.seen[name] = true
	}
	return name
}

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{syncTook, syncs, finishedJobs, finishedPods, finishedIndexes, policyFailures, finalizers, external, createdPods}
}

// observeCreated counts the pods that were made, and those that could not be.
func (s *step) observeCreated(made, failed int) {
	reason := "new"
	switch {
	case s.job.Spec.PodReplacementPolicy != nil && *s.job.Spec.PodReplacementPolicy == batchv1.Failed && s.failed > 0:
		reason = "recreate_failed"
	case s.failed > 0 || s.terminating > 0:
		reason = "recreate_terminating_or_failed"
	}
	for status, n := range map[string]int{"succeeded": made, "failed": failed} {
		if n > 0 {
			createdPods.WithLabelValues(reason, status).Add(float64(n))
		}
	}
}

func modeOf(job *batchv1.Job) string {
	if m := job.Spec.CompletionMode; m != nil {
		return string(*m)
	}
	return string(batchv1.NonIndexedCompletion)
}

// observe counts a look at a Job: was is how many of its pods were active before it,
// is how many are after.
func observe(job *batchv1.Job, was, is int, began time.Time, err error) {
	action, result := "tracking", "success"
	switch {
	case is > was:
		action = "pods_created"
	case is < was:
		action = "pods_deleted"
	}
	if err != nil {
		result = "error"
	}
	syncs.WithLabelValues(modeOf(job), result, action).Inc()
	syncTook.WithLabelValues(modeOf(job), result, action).Observe(time.Since(began).Seconds())
}

// counts is what is counted of a Job's status.
type counts struct {
	succeeded, failed int32
	failedIndexes     int
	finished          bool
}

func countsOf(job *batchv1.Job) counts {
	c := counts{succeeded: job.Status.Succeeded, failed: job.Status.Failed, finished: finished(job)}
	if f := job.Status.FailedIndexes; f != nil && job.Spec.Completions != nil {
		c.failedIndexes = parseIndexes(*f, int(*job.Spec.Completions)).size()
	}
	return c
}

// observeStatus counts what a written status says for the first time.
func observeStatus(was counts, job *batchv1.Job) counts {
	is, mode := countsOf(job), modeOf(job)
	finishedPods.WithLabelValues(mode, "succeeded").Add(float64(max(is.succeeded-was.succeeded, 0)))
	finishedPods.WithLabelValues(mode, "failed").Add(float64(max(is.failed-was.failed, 0)))
	if mode == string(batchv1.IndexedCompletion) {
		limit := "global"
		if job.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
		}
		finishedIndexes.WithLabelValues("succeeded", limit).Add(float64(max(is.succeeded-was.succeeded, 0)))
		finishedIndexes.WithLabelValues("failed", limit).Add(float64(max(is.failedIndexes-was.failedIndexes, 0)))
	}
	if was.finished || !is.finished {
		return is
	}
	if c := condition(job, batchv1.JobComplete); c != nil {
		finishedJobs.WithLabelValues(mode, "succeeded", c.Reason).Inc()
	} else if c := condition(job, batchv1.JobFailed); c != nil {
		finishedJobs.WithLabelValues(mode, "failed", c.Reason).Inc()
	}
	return is
}

// watchFinalizers counts, until ctx ends, pods that end with the tracking finalizer, and
// those that lose it; and Jobs that another controller manages.
func watchFinalizers(jobs, pods cache.SharedIndexInformer) func(context.Context, func(), func(cache.ObjectName)) error {
	return func(ctx context.Context, ready func(), _ func(cache.ObjectName)) error {
		onPods, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(now any) { observeFinalizer(nil, now) },
			UpdateFunc: observeFinalizer,
			DeleteFunc: func(was any) { observeFinalizer(informer.Object(was), nil) },
		})
		if err != nil {
			return err
		}
		defer func() { _ = pods.RemoveEventHandler(onPods) }()
		onJobs, err := jobs.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(now any) {
			if job, ok := now.(*batchv1.Job); ok && job.Spec.ManagedBy != nil && *job.Spec.ManagedBy != batchv1.JobControllerName {
				external.WithLabelValues(others.label(*job.Spec.ManagedBy)).Inc()
			}
		}})
		if err != nil {
			return err
		}
		defer func() { _ = jobs.RemoveEventHandler(onJobs) }()
		ready()
		<-ctx.Done()
		return nil
	}
}

// observeFinalizer counts a change of a pod; nil is one that is not there.
func observeFinalizer(was, now any) {
	ended := func(obj any) bool {
		p, ok := obj.(*corev1.Pod)
		return ok && tracked(p) && (p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded)
	}
	switch before, after := ended(was), ended(now); {
	case after && !before:
		finalizers.WithLabelValues("add").Inc()
	case before && !after:
		finalizers.WithLabelValues("delete").Inc()
	}
}
