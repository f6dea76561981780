package job

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
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
	finishedPods = prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + "job_pods_finished_total",
		Help: "[STABLE] Pods of Jobs that finished and are counted"}, []string{"completion_mode", "result"})
)

// Metrics are what is counted here, under upstream's names.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{syncTook, syncs, finishedJobs, finishedPods}
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
	finished          bool
}

func countsOf(job *batchv1.Job) counts {
	return counts{job.Status.Succeeded, job.Status.Failed, finished(job)}
}

// observeStatus counts what a written status says for the first time.
func observeStatus(was counts, job *batchv1.Job) counts {
	is, mode := countsOf(job), modeOf(job)
	finishedPods.WithLabelValues(mode, "succeeded").Add(float64(max(is.succeeded-was.succeeded, 0)))
	finishedPods.WithLabelValues(mode, "failed").Add(float64(max(is.failed-was.failed, 0)))
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
