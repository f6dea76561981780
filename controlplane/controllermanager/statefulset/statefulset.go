// Package statefulset is the statefulset-controller. It reads StatefulSets,
// Pods, PersistentVolumeClaims and ControllerRevisions, creates and deletes
// Pods in order, creates their claims, and writes ControllerRevisions and the
// status of StatefulSets.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/controlplane/controllermanager/pods"
	"knarr/controlplane/controllermanager/revisions"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "statefulset-controller"

// hashLabel bears the hash of a revision.
const hashLabel = "controller.kubernetes.io/hash"

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

func selectorOf(o any) *metav1.LabelSelector { return o.(*appsv1.StatefulSet).Spec.Selector }

type reconciler struct {
	sets, pods, claims, revisions cache.Indexer
	client                        kubernetes.Interface
	events                        record.EventRecorder
	wrote                         *ownwrites.Log
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	sets, podInformer := f.Apps().V1().StatefulSets().Informer(), f.Core().V1().Pods().Informer()
	claims, history := f.Core().V1().PersistentVolumeClaims().Informer(), f.Apps().V1().ControllerRevisions().Informer()
	for _, inf := range []cache.SharedIndexInformer{podInformer, history} {
		if err := ownership.Index(inf); err != nil {
			return nil, err
		}
	}
	r := &reconciler{sets.GetIndexer(), podInformer.GetIndexer(), claims.GetIndexer(), history.GetIndexer(), client, events, ownwrites.New()}
	matching := ownership.Matching(r.sets, selectorOf)
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(sets),
			ownership.Source(podInformer, kind.GroupKind(), matching),
			ownership.Source(history, kind.GroupKind(), nil),
			{Informer: claims, Keys: matching}, // they bear the labels that the set selects by
		},
		Reconcile: ownwrites.Reconcile(r.wrote, r.sets, r.reconcile),
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName, set *appsv1.StatefulSet) (time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, nil // validation lets none through
	}
	fresh := func(ctx context.Context) (metav1.Object, error) {
		return r.client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
	history := revisions.History{Client: r.client.AppsV1(), Indexer: r.revisions, Owner: set, Kind: kind, Selector: selector, Fresh: fresh,
		Wrote: func(cr *appsv1.ControllerRevision) { r.wrote.Wrote(key, r.revisions, cr) }}
	list, err := history.List(ctx)
	if err != nil {
		return 0, err
	}
	all, err := r.claim(ctx, set, selector, fresh)
	if err != nil {
		return 0, err
	}
	v := &view{set: set, now: time.Now(), status: *set.Status.DeepCopy()}
	v.status.ObservedGeneration = set.Generation
	if set.DeletionTimestamp != nil {
		v.sort(all)
		v.count()
		return 0, r.writeStatus(ctx, key, v)
	}
	update, err := r.revision(ctx, history, list, set)
	if errors.Is(err, revisions.ErrCollision) {
		v.status.CollisionCount = new(deref(v.status.CollisionCount) + 1)
		return 0, r.writeStatus(ctx, key, v)
	}
	if err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return 0, nil
		}
		return 0, err
	}
	if err := v.revise(list, update); err != nil {
		return 0, err
	}
	v.sort(all)
	actErr := r.act(ctx, key, v)
	v.count()
	if err := r.writeStatus(ctx, key, v); err != nil {
		return 0, err
	}
	if actErr != nil {
		return 0, actErr
	}
	live := map[string]bool{v.current.Name: true, v.update.Name: true}
	for _, p := range all {
		live[p.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	err = history.Trim(ctx, list, set.Spec.RevisionHistoryLimit, func(cr *appsv1.ControllerRevision) bool { return live[cr.Name] })
	return v.untilAvailable(all), err
}

func (r *reconciler) claim(ctx context.Context, set *appsv1.StatefulSet, selector labels.Selector, fresh func(context.Context) (metav1.Object, error)) ([]*corev1.Pod, error) {
	all, err := ownership.Of[*corev1.Pod](r.pods, set, true)
	if err != nil {
		return nil, err
	}
	claim := ownership.Claim[*corev1.Pod]{
		Owner: set, Kind: kind, Selector: selector, Fresh: fresh,
		Patch:     pods.PodControl{Client: r.client.CoreV1(), Events: r.events}.Patch,
		Adoptable: func(p *corev1.Pod) bool { return ordinal(set, p) >= 0 },
	}
	return claim.Objects(ctx, all)
}

func (r *reconciler) revision(ctx context.Context, h revisions.History, list []*appsv1.ControllerRevision, set *appsv1.StatefulSet) (*appsv1.ControllerRevision, error) {
	data, err := revisions.Data(&set.Spec.Template)
	if err != nil {
		return nil, err
	}
	sum := fnv.New32()
	sum.Write(data)
	if n := set.Status.CollisionCount; n != nil {
		sum.Write([]byte(strconv.FormatInt(int64(*n), 10)))
	}
	hash := rand.SafeEncodeString(fmt.Sprint(sum.Sum32()))
	bear := maps.Clone(set.Spec.Template.Labels)
	if bear == nil {
		bear = map[string]string{}
	}
	bear[hashLabel] = hash
	return h.Ensure(ctx, list, data, set.Name[:min(len(set.Name), 223)]+"-"+hash, bear)
}

func (r *reconciler) writeStatus(ctx context.Context, key cache.ObjectName, v *view) error {
	if apiequality.Semantic.DeepEqual(v.status, v.set.Status) {
		return nil
	}
	set := v.set.DeepCopy()
	set.Status = v.status
	made, err := r.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.wrote.Wrote(key, r.sets, made)
	}
	return err
}

// ordinal is the number in a pod's name, or -1 if it is not of the set.
func ordinal(set *appsv1.StatefulSet, p *corev1.Pod) int {
	number, ok := strings.CutPrefix(p.Name, set.Name+"-")
	n, err := strconv.ParseInt(number, 10, 32)
	if !ok || err != nil || n < 0 {
		return -1
	}
	return int(n)
}

func deref(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}
