package job

import (
	"maps"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/controllermanager/pods"
)

// A snapshot is one job and its pods at one time. The job's status gathers what to
// store.
type snapshot struct {
	job    *batchv1.Job
	pods   []*corev1.Pod
	active []*corev1.Pod
	now    time.Time

	counted            map[types.UID]bool // in status, while their finalizer goes
	newOK, newFailed   []*corev1.Pod
	succeeded, failed  int32
	ready, terminating int32
	doneBefore         indexes
	doneIndexes        indexes
	failedIndexes      indexes
	delayed            map[int]*corev1.Pod // by index: failed and not replaced yet
	finish             *batchv1.JobCondition
}

func newSnapshot(job *batchv1.Job, all []*corev1.Pod, now time.Time) *snapshot {
	l := &snapshot{job: job, pods: all, now: now, counted: map[types.UID]bool{}}
	if job.Status.UncountedTerminatedPods == nil {
		job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	u := job.Status.UncountedTerminatedPods
	for _, list := range [][]types.UID{u.Succeeded, u.Failed} {
		for _, uid := range list {
			l.counted[uid] = true
		}
	}
	for _, p := range all {
		switch {
		case pods.Active(p):
			l.active = append(l.active, p)
			if pods.Ready(p) {
				l.ready++
			}
		case pods.Terminating(p):
			l.terminating++
		}
		if !tracked(p) || l.counted[p.UID] || !l.validIndex(p) {
			continue
		}
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			l.newOK = append(l.newOK, p)
		case l.failedPod(p):
			l.newFailed = append(l.newFailed, p)
		}
	}
	l.succeeded = job.Status.Succeeded + int32(len(l.newOK)+len(u.Succeeded))
	l.failed = job.Status.Failed + int32(len(u.Failed))
	for _, p := range l.newFailed {
		if match(job.Spec.PodFailurePolicy, p).counts {
			l.failed++
		}
	}
	if l.indexed() {
		l.readIndexes()
	}
	if job.Status.StartTime == nil && !suspended(job) {
		job.Status.StartTime = new(metav1.NewTime(now))
	}
	return l
}

func suspended(job *batchv1.Job) bool { return job.Spec.Suspend != nil && *job.Spec.Suspend }

func (l *snapshot) indexed() bool {
	return l.job.Spec.CompletionMode != nil && *l.job.Spec.CompletionMode == batchv1.IndexedCompletion
}

// replacesFailedOnly says that a pod on its way out is not replaced yet.
func (l *snapshot) replacesFailedOnly() bool {
	p := l.job.Spec.PodReplacementPolicy
	return p != nil && *p == batchv1.Failed
}

// failedPod says that a pod did not do its work and will not.
func (l *snapshot) failedPod(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	return !l.replacesFailedOnly() && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

// indexOf is the pod's completion index, or -1.
func indexOf(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || n < 0 {
		return -1
	}
	return n
}

func (l *snapshot) validIndex(p *corev1.Pod) bool {
	if !l.indexed() {
		return true
	}
	i := indexOf(p)
	return i >= 0 && i < int(*l.job.Spec.Completions)
}

func (l *snapshot) readIndexes() {
	job, size := l.job, int(*l.job.Spec.Completions)
	l.doneBefore = parseIndexes(job.Status.CompletedIndexes, size)
	l.doneIndexes = slices.Clone(l.doneBefore)
	for _, p := range l.newOK {
		l.doneIndexes.add(indexOf(p))
	}
	l.succeeded = int32(l.doneIndexes.size())
	limit := job.Spec.BackoffLimitPerIndex
	if limit == nil {
		return
	}
	l.delayed = map[int]*corev1.Pod{}
	if job.Status.FailedIndexes != nil {
		l.failedIndexes = parseIndexes(*job.Status.FailedIndexes, size)
	}
	running := map[int]bool{}
	for _, p := range l.active {
		if i := indexOf(p); i >= 0 {
			running[i] = true
		}
	}
	for _, p := range l.pods {
		if !tracked(p) || !l.validIndex(p) || !l.failedPod(p) {
			continue
		}
		i, m := indexOf(p), match(job.Spec.PodFailurePolicy, p)
		switch {
		case m.failsIndex || m.counts && failuresOfIndex(p) >= *limit:
			l.failedIndexes.add(i)
		case !running[i] && !l.doneIndexes.has(i):
			if have := l.delayed[i]; have == nil || triesOf(have) < triesOf(p) {
				l.delayed[i] = p
			}
		}
	}
	maps.DeleteFunc(l.delayed, func(i int, _ *corev1.Pod) bool { return l.failedIndexes.has(i) })
}

func number(p *corev1.Pod, annotation string) int32 {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

func failuresOfIndex(p *corev1.Pod) int32 { return number(p, batchv1.JobIndexFailureCountAnnotation) }

func triesOf(p *corev1.Pod) int32 {
	return failuresOfIndex(p) + number(p, ignoredAnnotation)
}

// ignoredAnnotation counts the failures of an index that do not count.
const ignoredAnnotation = "batch.kubernetes.io/job-index-ignored-failure-count"

// finishCondition is the condition that ends the job, or nil as long as it goes on.
func (l *snapshot) finishCondition() *batchv1.JobCondition {
	job := l.job
	if c := condition(job, batchv1.JobSuccessCriteriaMet); c != nil {
		return c
	}
	if c := condition(job, batchv1.JobFailureTarget); c != nil {
		return l.condition(batchv1.JobFailed, c.Reason, c.Message)
	}
	fail := func(reason, message string) *batchv1.JobCondition {
		return l.condition(batchv1.JobFailureTarget, reason, message)
	}
	for _, p := range l.pods {
		if m := match(job.Spec.PodFailurePolicy, p); m.failsJob != "" && l.failedPod(p) {
			return fail(batchv1.JobReasonPodFailurePolicy, m.failsJob)
		}
	}
	switch {
	case l.failed > *job.Spec.BackoffLimit || l.pastRestarts():
		return fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case l.untilDeadline() == 0:
		return fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	}
	if !l.indexed() {
		return nil
	}
	if job.Spec.BackoffLimitPerIndex != nil {
		switch most := job.Spec.MaxFailedIndexes; {
		case most != nil && l.failedIndexes.size() > int(*most):
			return fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
		case len(l.failedIndexes) > 0 && l.failedIndexes.size()+l.doneIndexes.size() >= int(*job.Spec.Completions):
			return fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if message := enough(job.Spec.SuccessPolicy, l.doneIndexes, int(*job.Spec.Completions)); message != "" {
		return l.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
	}
	return nil
}

func (l *snapshot) condition(kind batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	at := metav1.NewTime(l.now)
	return &batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastProbeTime: at, LastTransitionTime: at, Reason: reason, Message: message}
}

// untilDeadline is how long the job may still run; negative is for ever.
func (l *snapshot) untilDeadline() time.Duration {
	limit := l.job.Spec.ActiveDeadlineSeconds
	if limit == nil || l.job.Status.StartTime == nil || suspended(l.job) {
		return -1
	}
	return max(0, l.job.Status.StartTime.Add(time.Duration(*limit)*time.Second).Sub(l.now))
}

// pastRestarts says that containers restarted in place beyond the limit.
func (l *snapshot) pastRestarts() bool {
	if l.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, p := range l.pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, c := range p.Status.InitContainerStatuses {
			n += c.RestartCount
		}
		for _, c := range p.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	if *l.job.Spec.BackoffLimit == 0 {
		return n > 0
	}
	return n >= *l.job.Spec.BackoffLimit
}
