// Package ttlafterfinished is the ttl-after-finished-controller. It reads Jobs
// and deletes those whose spec.ttlSecondsAfterFinished has passed.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "ttl-after-finished-controller"

type reconciler struct {
	jobs   cache.Indexer
	client kubernetes.Interface
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[cache.ObjectName] {
	jobs := f.Batch().V1().Jobs().Informer()
	r := &reconciler{jobs.GetIndexer(), client}
	return &controller.Controller[cache.ObjectName]{
		Name:      Name,
		Workers:   5,
		Sources:   []controller.Source[cache.ObjectName]{controller.Self(jobs)},
		Reconcile: controller.Existing(r.jobs, r.reconcile),
	}
}

func (r *reconciler) reconcile(ctx context.Context, job *batchv1.Job) (time.Duration, error) {
	left, ok := timeLeft(job, time.Now())
	if !ok || left > 0 {
		return left, nil
	}
	// The revision keeps a TTL that has just been made longer.
	err := r.client.BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("delete expired job %s: %w", cache.MetaObjectToName(job), err)
	}
	if err == nil {
		latency.Observe((-left).Seconds())
	}
	return 0, nil
}

// timeLeft is how long job may still stay; ok is false when it has no TTL, has
// not finished, or is being deleted.
func timeLeft(job *batchv1.Job, now time.Time) (left time.Duration, ok bool) {
	ttl := job.Spec.TTLSecondsAfterFinished
	if ttl == nil || job.DeletionTimestamp != nil {
		return 0, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Add(time.Duration(*ttl) * time.Second).Sub(now), true
		}
	}
	return 0, false
}
