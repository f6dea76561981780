package job

import (
	"context"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/controllermanager/pods"
)

// track counts pods that ended, each exactly once: its UID goes into the
// status, then its finalizer, then the UID turns into a number.
func (s *step) track(ctx context.Context) error {
	status := &s.job.Status
	before := status.DeepCopy()
	if obj, ok, err := s.jobs.GetByKey(s.key.String()); err == nil && ok {
		before = &obj.(*batchv1.Job).Status
	}
	status.Active, status.Ready, status.Terminating = s.nowActive, &s.ready, &s.terminating
	bearing := map[types.UID]bool{}
	for _, p := range s.snapshot.pods {
		if tracked(p) {
			bearing[p.UID] = true
		}
	}
	s.settle(bearing)
	free := s.count()
	if s.finish != nil {
		s.setInterimCondition()
	}
	if !apiequality.Semantic.DeepEqual(before, status) || s.conditioned {
		if gone, err := s.store(ctx); gone || err != nil {
			return err
		}
	}
	var mu sync.Mutex
	_, freeErr := pods.Parallel(len(free), func(i int) error {
		made, err := s.untrack(ctx, free[i])
		if err != nil {
			return err
		}
		switch {
		case made == nil:
		case goes(made):
			s.wrote.Removed(s.key, s.reconciler.pods, made)
		default:
			s.wrote.Wrote(s.key, s.reconciler.pods, made)
		}
		mu.Lock()
		delete(bearing, free[i].UID)
		mu.Unlock()
		return nil
	})
	changed := s.settle(bearing)
	ended := freeErr == nil && s.end()
	if changed || ended {
		if gone, err := s.store(ctx); gone || err != nil {
			return err
		}
	}
	if ended {
		s.recordFinished()
	}
	return freeErr
}

// settle turns the UIDs of pods that bear no finalizer into numbers.
func (s *step) settle(bearing map[types.UID]bool) (changed bool) {
	u := s.job.Status.UncountedTerminatedPods
	counted := func(list []types.UID, total *int32) []types.UID {
		left := slices.DeleteFunc(slices.Clone(list), func(uid types.UID) bool { return !bearing[uid] })
		*total += int32(len(list) - len(left))
		changed = changed || len(left) < len(list)
		if len(left) == 0 {
			return nil
		}
		return left
	}
	u.Succeeded = counted(u.Succeeded, &s.job.Status.Succeeded)
	u.Failed = counted(u.Failed, &s.job.Status.Failed)
	return changed
}

// count notes pods that ended in the status and gives those whose finalizer
// may go.
func (s *step) count() (free []*corev1.Pod) {
	u := s.job.Status.UncountedTerminatedPods
	done, newlyDone := slices.Clone(s.doneBefore), 0
	failing := s.finish != nil && s.finish.Type != batchv1.JobSuccessCriteriaMet
	for _, p := range s.snapshot.pods {
		if !tracked(p) {
			continue
		}
		if len(u.Succeeded)+len(u.Failed)+newlyDone >= perStep {
			break
		}
		failed := s.failedPod(p)
		switch {
		case s.job.DeletionTimestamp != nil, s.finish != nil, p.Status.Phase == corev1.PodSucceeded:
		case !failed, s.indexed() && s.delayed[indexOf(p)] == p:
			continue
		}
		free = append(free, p)
		switch {
		case s.counted[p.UID] || !s.validIndex(p):
		case p.Status.Phase == corev1.PodSucceeded && s.indexed():
			if i := indexOf(p); !done.has(i) {
				done.add(i)
				newlyDone++
			}
		case p.Status.Phase == corev1.PodSucceeded:
			u.Succeeded = append(u.Succeeded, p.UID)
		case failed || failing:
			m := match(s.job.Spec.PodFailurePolicy, p)
			if m.counts {
				u.Failed = append(u.Failed, p.UID)
			}
			if m.action != "" {
				s.handled = append(s.handled, string(m.action))
			}
		}
	}
	if s.indexed() {
		s.job.Status.CompletedIndexes, s.job.Status.Succeeded = done.String(), int32(done.size())
		if s.job.Spec.BackoffLimitPerIndex != nil {
			s.job.Status.FailedIndexes = new(s.failedIndexes.String())
		}
	}
	return free
}

// goes says that a pod is no more once it has these finalizers: one that still
// has time to end stays until its node has ended it.
func goes(p *corev1.Pod) bool {
	grace := p.DeletionGracePeriodSeconds
	return p.DeletionTimestamp != nil && len(p.Finalizers) == 0 && (grace == nil || *grace == 0)
}

// setInterimCondition tells that the job is about to end, before its last pod has.
func (s *step) setInterimCondition() {
	job := s.job
	switch s.finish.Type {
	case batchv1.JobFailureTarget:
		job.Status.Conditions = append(job.Status.Conditions, *s.finish)
		s.finish = s.snapshot.condition(batchv1.JobFailed, s.finish.Reason, s.finish.Message)
	case batchv1.JobSuccessCriteriaMet:
		if condition(job, batchv1.JobSuccessCriteriaMet) == nil {
			job.Status.Conditions = append(job.Status.Conditions, *s.finish)
		}
		s.finish = s.snapshot.condition(batchv1.JobComplete, s.finish.Reason, s.finish.Message)
	}
}

// end makes the job finished once all pods are counted and gone.
func (s *step) end() bool {
	u := s.job.Status.UncountedTerminatedPods
	if s.finish == nil || len(u.Succeeded)+len(u.Failed) > 0 || s.terminating > 0 {
		return false
	}
	s.job.Status.Conditions = append(s.job.Status.Conditions, *s.finish)
	if s.finish.Type == batchv1.JobComplete {
		s.job.Status.CompletionTime = &s.finish.LastTransitionTime
	}
	return true
}

func (s *step) recordFinished() {
	if s.finish.Type != batchv1.JobComplete {
		s.events.Event(s.job, corev1.EventTypeWarning, s.finish.Reason, s.finish.Message)
		return
	}
	if want := s.job.Spec.Completions; want != nil && s.job.Status.Succeeded > *want {
		s.events.Event(s.job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	s.events.Event(s.job, corev1.EventTypeNormal, "Completed", "Job completed")
}

// store writes the status; gone says that the job is no more.
func (s *step) store(ctx context.Context) (gone bool, err error) {
	made, err := s.client.Jobs(s.job.Namespace).UpdateStatus(ctx, s.job, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if apierrors.IsConflict(err) {
		return false, err
	}
	if err != nil {
		return false, fmt.Errorf("tracking status: %w", err)
	}
	if made.Status.UncountedTerminatedPods == nil {
		made.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	s.wrote.Wrote(s.key, s.jobs, made)
	s.counts = observeStatus(s.counts, made)
	for _, action := range s.handled {
		policyFailures.WithLabelValues(action).Inc()
	}
	s.handled = nil
	s.job = made
	return false, nil
}
