// Package cronjob is the cronjob-controller. It reads CronJobs and Jobs,
// creates a Job at each time of the schedule, deletes Jobs beyond the history,
// and writes the status of CronJobs.
package cronjob

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "cronjob-controller"

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

type reconciler struct {
	crons, jobs cache.Indexer
	client      batchclient.BatchV1Interface
	events      record.EventRecorder
	wrote       *ownwrites.Log
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	crons, jobs := f.Batch().V1().CronJobs().Informer(), f.Batch().V1().Jobs().Informer()
	if err := ownership.Index(jobs); err != nil {
		return nil, err
	}
	r := &reconciler{crons.GetIndexer(), jobs.GetIndexer(), client.BatchV1(), events, ownwrites.New()}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(crons),
			ownership.Source(jobs, kind.GroupKind(), nil),
		},
		Reconcile: ownwrites.Reconcile(r.wrote, r.crons, r.reconcile),
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName, stored *batchv1.CronJob) (time.Duration, error) {
	cron := stored.DeepCopy()
	jobs, err := ownership.Of[*batchv1.Job](r.jobs, cron, false)
	if err != nil {
		return 0, err
	}
	if err := r.trim(ctx, key, cron, jobs); err != nil {
		return 0, err
	}
	if err := r.follow(ctx, cron, jobs); err != nil {
		return 0, err
	}
	again, startErr := time.Duration(0), error(nil)
	if cron.DeletionTimestamp == nil {
		again, startErr = r.start(ctx, key, cron, time.Now())
	}
	if !apiequality.Semantic.DeepEqual(stored.Status, cron.Status) {
		made, err := r.client.CronJobs(cron.Namespace).UpdateStatus(ctx, cron, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		r.wrote.Wrote(key, r.crons, made)
	}
	return again, startErr
}

// outcome is how a job ended; false while it has not.
func outcome(job *batchv1.Job) (batchv1.JobConditionType, bool) {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type, true
		}
	}
	return "", false
}

// follow brings the list of active jobs up to date.
func (r *reconciler) follow(ctx context.Context, cron *batchv1.CronJob, jobs []*batchv1.Job) error {
	s := &cron.Status
	drop := func(uid types.UID) {
		s.Active = slices.DeleteFunc(s.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
	}
	mine := map[types.UID]bool{}
	for _, job := range jobs {
		mine[job.UID] = true
		listed := slices.ContainsFunc(s.Active, func(ref corev1.ObjectReference) bool { return ref.UID == job.UID })
		how, ended := outcome(job)
		if !ended {
			if !listed {
				r.events.Eventf(cron, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", job.Name)
			}
			continue
		}
		if listed {
			drop(job.UID)
			r.events.Eventf(cron, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, how)
		}
		if t := job.Status.CompletionTime; how == batchv1.JobComplete && t != nil && (s.LastSuccessfulTime == nil || t.After(s.LastSuccessfulTime.Time)) {
			s.LastSuccessfulTime = t
		}
	}
	for _, ref := range slices.Clone(s.Active) {
		if mine[ref.UID] {
			continue
		}
		job, err := r.client.Jobs(cron.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && job.UID != ref.UID:
			r.events.Eventf(cron, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			drop(ref.UID)
		case err != nil:
			return err
		}
	}
	return nil
}

// start creates the job that is due, if one is, and says when the next will be.
func (r *reconciler) start(ctx context.Context, key cache.ObjectName, cron *batchv1.CronJob, now time.Time) (time.Duration, error) {
	if zone := cron.Spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			r.events.Eventf(cron, corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *zone, err)
			return 0, nil
		}
	}
	if cron.Spec.Suspend != nil && *cron.Spec.Suspend {
		return 0, nil
	}
	schedule, err := parse(cron)
	if err != nil {
		r.events.Eventf(cron, corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", cron.Spec.Schedule, err)
		return 0, nil
	}
	if strings.Contains(cron.Spec.Schedule, "TZ") {
		r.events.Eventf(cron, corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", cron.Spec.Schedule)
	}
	due, missed, err := latest(cron, schedule, now)
	if err != nil {
		r.events.Eventf(cron, corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", cron.Spec.Schedule, err)
		return 0, nil
	}
	if missed > manyMissed {
		r.events.Eventf(cron, corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	next := schedule.Next(now).Sub(now) + delta
	if due.IsZero() {
		return next, nil
	}
	if late := cron.Spec.StartingDeadlineSeconds; late != nil && due.Add(time.Duration(*late)*time.Second).Before(now) {
		r.events.Eventf(cron, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
		return next, nil
	}
	name := fmt.Sprintf("%s-%d", cron.Name, due.Unix()/60)
	if cron.Status.LastScheduleTime.Equal(&metav1.Time{Time: due}) || slices.ContainsFunc(cron.Status.Active, func(ref corev1.ObjectReference) bool { return ref.Name == name }) {
		return next, nil
	}
	if len(cron.Status.Active) > 0 {
		switch cron.Spec.ConcurrencyPolicy {
		case batchv1.ForbidConcurrent:
			r.events.Eventf(cron, corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
			return next, nil
		case batchv1.ReplaceConcurrent:
			for _, ref := range slices.Clone(cron.Status.Active) {
				if err := r.delete(ctx, key, cron, ref.Name, ref.UID); err != nil {
					return 0, err
				}
			}
		}
	}
	return next, r.create(ctx, key, cron, name, due)
}

func (r *reconciler) create(ctx context.Context, key cache.ObjectName, cron *batchv1.CronJob, name string, due time.Time) error {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: cron.Namespace,
		Labels: maps.Clone(cron.Spec.JobTemplate.Labels), Annotations: maps.Clone(cron.Spec.JobTemplate.Annotations),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cron, kind)},
	}, Spec: *cron.Spec.JobTemplate.Spec.DeepCopy()}
	if job.Annotations == nil {
		job.Annotations = map[string]string{}
	}
	zone := time.UTC
	if name := cron.Spec.TimeZone; name != nil {
		if l, err := time.LoadLocation(*name); err == nil {
			zone = l
		}
	}
	job.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.In(zone).Format(time.RFC3339)
	made, err := r.client.Jobs(cron.Namespace).Create(ctx, job, metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		// It was created before the status named it.
		if made, err = r.client.Jobs(cron.Namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !metav1.IsControlledBy(made, cron) {
			return nil
		}
	case err != nil:
		r.events.Eventf(cron, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return err
	default:
		skew.Observe(made.CreationTimestamp.Sub(due).Seconds())
		r.wrote.Wrote(key, r.jobs, made)
		r.events.Eventf(cron, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	}
	cron.Status.LastScheduleTime = &metav1.Time{Time: due}
	if _, ended := outcome(made); !ended {
		cron.Status.Active = append(cron.Status.Active, corev1.ObjectReference{
			Kind: "Job", APIVersion: batchv1.SchemeGroupVersion.String(), Namespace: made.Namespace, Name: made.Name,
			UID: made.UID, ResourceVersion: made.ResourceVersion,
		})
	}
	return nil
}

func (r *reconciler) delete(ctx context.Context, key cache.ObjectName, cron *batchv1.CronJob, name string, uid types.UID) error {
	err := r.client.Jobs(cron.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground), Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		r.events.Eventf(cron, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return err
	}
	cron.Status.Active = slices.DeleteFunc(cron.Status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
	r.wrote.Deleted(key, r.jobs, &metav1.ObjectMeta{Namespace: cron.Namespace, Name: name, UID: uid})
	r.events.Eventf(cron, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	return nil
}

// trim deletes the oldest ended jobs beyond the history limits.
func (r *reconciler) trim(ctx context.Context, key cache.ObjectName, cron *batchv1.CronJob, jobs []*batchv1.Job) error {
	by := map[batchv1.JobConditionType][]*batchv1.Job{}
	for _, job := range jobs {
		if how, ended := outcome(job); ended && job.DeletionTimestamp == nil {
			by[how] = append(by[how], job)
		}
	}
	for how, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: cron.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: cron.Spec.FailedJobsHistoryLimit,
	} {
		list := by[how]
		if limit == nil || len(list) <= int(*limit) {
			continue
		}
		slices.SortFunc(list, func(a, b *batchv1.Job) int { return cmp.Or(began(a).Compare(began(b)), cmp.Compare(a.Name, b.Name)) })
		for _, job := range list[:len(list)-int(*limit)] {
			if err := r.delete(ctx, key, cron, job.Name, job.UID); err != nil {
				return err
			}
		}
	}
	return nil
}

func began(job *batchv1.Job) time.Time {
	if t := job.Status.StartTime; t != nil {
		return t.Time
	}
	return job.CreationTimestamp.Time
}
