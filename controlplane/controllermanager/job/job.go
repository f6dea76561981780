// Package job is the job-controller. It reads Jobs and Pods, creates, deletes,
// adopts and releases Pods, takes their tracking finalizer away once they are
// counted, and writes the status of Jobs.
package job

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
	"knarr/internal/informer"
)

// Name is the controller's.
const Name = "job-controller"

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

func selectorOf(o any) *metav1.LabelSelector { return o.(*batchv1.Job).Spec.Selector }

type reconciler struct {
	jobs, pods cache.Indexer
	client     batchclient.JobsGetter
	podControl pods.PodControl
	events     record.EventRecorder
	wrote      *ownwrites.Log

	mu       sync.Mutex
	failures map[types.UID]failures
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	jobs, podInformer := f.Batch().V1().Jobs().Informer(), f.Core().V1().Pods().Informer()
	if err := ownership.Index(podInformer); err != nil {
		return nil, err
	}
	if err := indexTracked(podInformer); err != nil {
		return nil, err
	}
	r := &reconciler{
		jobs: jobs.GetIndexer(), pods: podInformer.GetIndexer(), client: client.BatchV1(), events: events,
		podControl: pods.PodControl{Client: client.CoreV1(), Events: events}, wrote: ownwrites.New(), failures: map[types.UID]failures{},
	}
	return &controller.Controller[cache.ObjectName]{
		Name:       Name,
		Workers:    5,
		RetryDelay: [2]time.Duration{time.Second, time.Minute}, // upstream's
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(jobs),
			ownership.Source(podInformer, kind.GroupKind(), r.matching),
		},
		Feeds:     []func(context.Context, func(), func(cache.ObjectName)) error{watchFinalizers(jobs, podInformer)},
		Reconcile: r.reconcile,
	}, nil
}

// matching names the jobs that may adopt a pod, and the one whose finalizer a
// pod let go still bears.
func (r *reconciler) matching(o metav1.Object) (keys []cache.ObjectName) {
	if slices.Contains(o.GetFinalizers(), batchv1.JobTrackingFinalizer) {
		if name := o.GetLabels()[batchv1.JobNameLabel]; name != "" {
			keys = append(keys, cache.NewObjectName(o.GetNamespace(), name))
		}
	}
	return append(keys, ownership.MatchingAll(r.jobs, o, selectorOf)...)
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.jobs.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !ok {
		r.wrote.Forget(key)
		return 0, r.letGo(ctx, key, "")
	}
	stored := obj.(*batchv1.Job)
	if by := stored.Spec.ManagedBy; by != nil && *by != batchv1.JobControllerName {
		return 0, nil
	}
	if !r.wrote.Seen(key) {
		return time.Minute, nil // events come before
	}
	if finished(stored) {
		r.forget(stored.UID)
		return 0, r.letGo(ctx, key, "")
	}
	if err := r.letGo(ctx, key, stored.UID); err != nil {
		return 0, err
	}
	mode := stored.Spec.CompletionMode
	if mode != nil && *mode != batchv1.NonIndexedCompletion && *mode != batchv1.IndexedCompletion {
		r.events.Event(stored, corev1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return 0, nil
	}
	all, err := r.claim(ctx, stored)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	l := newSnapshot(stored.DeepCopy(), all, now)
	record := r.failuresOf(l)
	l.finish = l.finishCondition()
	s := &step{reconciler: r, snapshot: l, key: key, counts: countsOf(stored), backoff: record.left(now)}
	again, manageErr := s.manage(ctx)
	err = s.track(ctx)
	observe(stored, len(l.active), int(s.nowActive), now, errors.Join(manageErr, err))
	if err != nil {
		return 0, err
	}
	r.remember(l.job.UID, record)
	return again, manageErr
}

func (r *reconciler) claim(ctx context.Context, job *batchv1.Job) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return nil, err
	}
	all, err := ownership.Of[*corev1.Pod](r.pods, job, true)
	if err != nil {
		return nil, err
	}
	claim := ownership.Claim[*corev1.Pod]{
		Owner: job, Kind: kind, Selector: selector,
		Finalizers: []string{batchv1.JobTrackingFinalizer},
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return r.client.Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
		},
		Patch: r.podControl.Patch,
	}
	return claim.Objects(ctx, all)
}

// letGo takes the tracking finalizer from the pods that bear the job's name but
// are not those of the job keep.
func (r *reconciler) letGo(ctx context.Context, key cache.ObjectName, keep types.UID) error {
	all, err := r.pods.ByIndex(byTracker, key.String())
	if err != nil {
		return err
	}
	var free []*corev1.Pod
	for _, o := range all {
		p := o.(*corev1.Pod)
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil && keep == "" || ref != nil && ref.UID != keep {
			free = append(free, p)
		}
	}
	_, err = pods.Parallel(len(free), func(i int) error { _, err := r.untrack(ctx, free[i]); return err })
	return err
}

// byTracker is the index of pods with the tracking finalizer, by the job that they
// bear the name of: as its owner or, without one, as a label.
const byTracker = "knarr.tracker"

func indexTracked(inf cache.SharedIndexInformer) error {
	return informer.Index(inf, cache.Indexers{byTracker: func(o any) ([]string, error) {
		p, ok := o.(*corev1.Pod)
		if !ok || !tracked(p) {
			return nil, nil
		}
		name := p.Labels[batchv1.JobNameLabel]
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
			if name = ref.Name; ref.Kind != kind.Kind {
				return nil, nil
			}
		}
		return []string{p.Namespace + "/" + name}, nil
	}})
}

func finished(job *batchv1.Job) bool {
	return condition(job, batchv1.JobComplete) != nil || condition(job, batchv1.JobFailed) != nil
}

// condition is the job's condition of that type if it is true.
func condition(job *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		if c := &job.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }
