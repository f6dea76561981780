package job

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
)

// perStep is the most pods created or deleted between two writes of the status.
const perStep = 500

// A step acts on one snapshot.
type step struct {
	*reconciler
	*snapshot
	key     cache.ObjectName
	backoff time.Duration
	// conditioned says that a condition changed.
	conditioned bool
	// counts is what metrics know of the status.
	counts counts
	// handled are the actions of the failure policy for pods that are counted in the
	// status, once it is stored.
	handled []string
	// nowActive is how many pods are active after this step.
	nowActive int32
}

// manage creates or deletes pods, and ends the job when it is complete.
func (s *step) manage(ctx context.Context) (again time.Duration, err error) {
	s.nowActive = int32(len(s.active))
	if left := s.untilDeadline(); left > 0 {
		again = left
	}
	if s.finish != nil {
		n, err := s.remove(ctx, s.active, false)
		if n != len(s.active) {
			s.finish = nil // not before all are being deleted
		}
		return again, err
	}
	if s.job.DeletionTimestamp == nil {
		var wait time.Duration
		if wait, err = s.adjust(ctx); wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	complete := s.succeeded > 0 && s.nowActive == 0
	if want := s.job.Spec.Completions; want != nil {
		complete = s.succeeded >= *want && s.nowActive == 0
	}
	switch {
	case complete:
		s.finish = s.snapshot.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	case s.job.DeletionTimestamp == nil:
		s.noteSuspension()
	}
	return again, err
}

func (s *step) noteSuspension() {
	if suspended(s.job) {
		if s.set(corev1.ConditionTrue, "JobSuspended", "Job suspended") {
			s.events.Event(s.job, corev1.EventTypeNormal, "Suspended", "Job suspended")
			s.job.Status.StartTime = nil
		}
		return
	}
	if s.set(corev1.ConditionFalse, "JobResumed", "Job resumed") {
		s.events.Event(s.job, corev1.EventTypeNormal, "Resumed", "Job resumed")
		s.job.Status.StartTime = new(metav1.NewTime(s.now))
	}
}

// set stores the condition Suspended; a job never suspended gets none.
func (s *step) set(status corev1.ConditionStatus, reason, message string) bool {
	c := s.snapshot.condition(batchv1.JobSuspended, reason, message)
	c.Status = status
	i := slices.IndexFunc(s.job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
	switch {
	case i < 0 && status == corev1.ConditionFalse:
		return false
	case i < 0:
		s.job.Status.Conditions = append(s.job.Status.Conditions, *c)
	case s.job.Status.Conditions[i].Status == status:
		return false
	default:
		s.job.Status.Conditions[i] = *c
	}
	s.conditioned = true
	return true
}

// adjust brings the number of active pods to what is wanted.
func (s *step) adjust(ctx context.Context) (wait time.Duration, err error) {
	if suspended(s.job) {
		_, err := s.remove(ctx, s.active, true)
		return 0, err
	}
	active := int32(len(s.active))
	want := *s.job.Spec.Parallelism
	switch total := s.job.Spec.Completions; {
	case total == nil && s.succeeded > 0:
		want = active
	case total != nil:
		want = max(0, min(want, *total-s.succeeded))
	}
	if excess := s.excess(int(active - want)); len(excess) > 0 {
		_, err := s.remove(ctx, excess[:min(len(excess), perStep)], true)
		return 0, err
	}
	missing := want - active
	if s.replacesFailedOnly() {
		missing -= s.terminating
	}
	if missing <= 0 {
		return 0, nil
	}
	if s.job.Spec.BackoffLimitPerIndex == nil && s.backoff > 0 {
		return s.backoff, nil
	}
	n := int(min(missing, perStep))
	var add []int
	if s.indexed() {
		add, wait = s.pending(n)
		n = len(add)
	}
	return wait, s.create(ctx, n, add)
}

// excess are the pods to delete: those whose index is done, doubled or
// outside, then the least useful until atLeast are.
func (s *step) excess(atLeast int) []*corev1.Pod {
	var out, left []*corev1.Pod
	if s.indexed() {
		best := map[int]*corev1.Pod{}
		for _, p := range s.active {
			i := indexOf(p)
			switch have := best[i]; {
			case !s.validIndex(p) || s.doneIndexes.has(i) || s.failedIndexes.has(i):
				out = append(out, p)
			case have == nil:
				best[i] = p
			case pods.ToDelete([]*corev1.Pod{have, p}, nil, 1, s.now)[0] == have:
				out, best[i] = append(out, have), p
			default:
				out = append(out, p)
			}
		}
		for _, p := range best {
			left = append(left, p)
		}
	} else {
		left = s.active
	}
	if n := atLeast - len(out); n > 0 {
		out = append(out, pods.ToDelete(left, nil, min(n, len(left)), s.now)...)
	}
	return out
}

// pending are up to n indexes that want a pod now, and when the next one does.
func (s *step) pending(n int) (add []int, wait time.Duration) {
	busy := map[int]bool{}
	for _, p := range s.active {
		busy[indexOf(p)] = true
	}
	if s.replacesFailedOnly() {
		for _, p := range s.snapshot.pods {
			if pods.Terminating(p) {
				busy[indexOf(p)] = true
			}
		}
	}
	for i := 0; i < int(*s.job.Spec.Completions) && len(add) < n; i++ {
		if last, done := s.doneIndexes.last(i); done {
			i = last
			continue
		}
		if busy[i] || s.failedIndexes.has(i) {
			continue
		}
		if p := s.delayed[i]; p != nil {
			left := ended(p, s.now).Add(waitAfter(int(triesOf(p)) + 1)).Sub(s.now)
			if left > 0 {
				if wait == 0 || left < wait {
					wait = left
				}
				continue
			}
		}
		add = append(add, i)
	}
	return add, wait
}

func (s *step) create(ctx context.Context, n int, add []int) error {
	ref := metav1.NewControllerRef(s.job, kind)
	var created, failed atomic.Int32
	done, err := pods.SlowStart(n, func(i int) error {
		p := pods.FromTemplate(&s.job.Spec.Template, s.job, ref)
		if !tracked(p) {
			p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
		}
		if add != nil {
			s.index(p, add[i])
		}
		made, err := s.podControl.Create(ctx, p, s.job)
		if err == nil {
			created.Add(1)
			s.wrote.Wrote(s.key, s.reconciler.pods, made)
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if err != nil {
			failed.Add(1)
		}
		return err
	})
	s.observeCreated(int(created.Load()), int(failed.Load()))
	s.nowActive += int32(done)
	return err
}

// index makes p the pod of one completion index.
func (s *step) index(p *corev1.Pod, i int) {
	number := strconv.Itoa(i)
	for _, m := range []*map[string]string{&p.Annotations, &p.Labels} {
		if *m == nil {
			*m = map[string]string{}
		}
		(*m)[batchv1.JobCompletionIndexAnnotation] = number
	}
	p.Spec.Hostname = fmt.Sprintf("%s-%d", s.job.Name, i)
	suffix := "-" + number + "-"
	p.GenerateName = s.job.Name[:min(len(s.job.Name), maxGenerateName-len(suffix))] + suffix
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for c := range list {
			if !slices.ContainsFunc(list[c].Env, func(e corev1.EnvVar) bool { return e.Name == indexVariable }) {
				list[c].Env = append(list[c].Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"}}})
			}
		}
	}
	if s.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	var failed, ignored int32
	if was := s.delayed[i]; was != nil {
		failed, ignored = failuresOfIndex(was), triesOf(was)-failuresOfIndex(was)
		if match(s.job.Spec.PodFailurePolicy, was).counts {
			failed++
		} else {
			ignored++
		}
	}
	p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(failed))
	if ignored > 0 {
		p.Annotations[ignoredAnnotation] = strconv.Itoa(int(ignored))
	}
}

const (
	indexVariable   = "JOB_COMPLETION_INDEX"
	maxGenerateName = 58
)

// remove deletes pods; with untrack they do not count any more. It returns how
// many are going now.
func (s *step) remove(ctx context.Context, list []*corev1.Pod, untrack bool) (int, error) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	n, err := pods.Parallel(len(list), func(i int) error {
		p := list[i]
		if untrack {
			if _, err := s.untrack(ctx, p); err != nil {
				return err
			}
		}
		err := s.podControl.Delete(ctx, p, s.job)
		if err == nil || apierrors.IsNotFound(err) {
			s.wrote.Deleted(s.key, s.reconciler.pods, p)
			return nil
		}
		return err
	})
	s.nowActive -= int32(n)
	s.terminating += int32(n)
	if err == nil {
		for _, p := range list {
			if pods.Ready(p) {
				s.ready--
			}
		}
	}
	return n, err
}

// untrack takes the tracking finalizer from a pod; nil if it is gone.
func (r *reconciler) untrack(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	if !tracked(p) {
		return p, nil
	}
	patch := []byte(`{"metadata":{"uid":"` + string(p.UID) + `","$deleteFromPrimitiveList/finalizers":["` + batchv1.JobTrackingFinalizer + `"]}}`)
	made, err := r.podControl.Patch(ctx, p, "application/strategic-merge-patch+json", patch)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return made, err
}
