// Package daemonset is the daemonset-controller. It reads DaemonSets, Pods,
// Nodes and ControllerRevisions, keeps one Pod on each node that a DaemonSet
// fits, and writes ControllerRevisions and the status of DaemonSets.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/controlplane/controllermanager/pods"
	"knarr/controlplane/controllermanager/revisions"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "daemonset-controller"

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

func selectorOf(o any) *metav1.LabelSelector { return o.(*appsv1.DaemonSet).Spec.Selector }

type reconciler struct {
	sets, pods, nodes, revisions cache.Indexer
	client                       appsclient.AppsV1Interface
	podControl                   pods.PodControl
	events                       record.EventRecorder
	wrote                        *ownwrites.Log
	// failed makes a pod that fails again and again wait ever longer.
	failed *flowcontrol.Backoff

	mu   sync.Mutex
	seen map[string]*corev1.Node // by name, as last told to all sets
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	sets, podInformer := f.Apps().V1().DaemonSets().Informer(), f.Core().V1().Pods().Informer()
	nodes, history := f.Core().V1().Nodes().Informer(), f.Apps().V1().ControllerRevisions().Informer()
	for _, inf := range []cache.SharedIndexInformer{podInformer, history} {
		if err := ownership.Index(inf); err != nil {
			return nil, err
		}
	}
	r := &reconciler{
		sets: sets.GetIndexer(), pods: podInformer.GetIndexer(), nodes: nodes.GetIndexer(), revisions: history.GetIndexer(),
		client: client.AppsV1(), podControl: pods.PodControl{Client: client.CoreV1(), Events: events}, events: events,
		wrote: ownwrites.New(), failed: flowcontrol.NewBackOff(time.Second, 15*time.Minute), seen: map[string]*corev1.Node{},
	}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 2,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(sets),
			ownership.Source(podInformer, kind.GroupKind(), ownership.Matching(r.sets, selectorOf)),
			ownership.Source(history, kind.GroupKind(), nil),
			{Informer: nodes, Keys: r.onNode},
		},
		Reconcile: ownwrites.Reconcile(r.wrote, r.sets, r.reconcile),
	}, nil
}

// onNode names all sets when a node comes, goes or changes so that other pods
// may fit it; a heartbeat is no such change.
func (r *reconciler) onNode(o metav1.Object) (keys []cache.ObjectName) {
	node := o.(*corev1.Node)
	_, there, err := r.nodes.GetByKey(node.Name)
	r.mu.Lock()
	had := r.seen[node.Name]
	if there || err != nil {
		r.seen[node.Name] = node
	} else {
		delete(r.seen, node.Name)
	}
	r.mu.Unlock()
	if there && had != nil && maps.Equal(had.Labels, node.Labels) && reflect.DeepEqual(had.Spec, node.Spec) {
		return nil
	}
	for _, obj := range r.sets.List() {
		keys = append(keys, cache.MetaObjectToName(obj.(metav1.Object)))
	}
	return keys
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName, ds *appsv1.DaemonSet) (time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil {
		return 0, nil // validation lets none through
	}
	if selector.Empty() {
		r.events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	if ds.DeletionTimestamp != nil {
		return 0, nil
	}
	fresh := func(ctx context.Context) (metav1.Object, error) {
		return r.client.DaemonSets(ds.Namespace).Get(ctx, ds.Name, metav1.GetOptions{})
	}
	history := revisions.History{Client: r.client, Indexer: r.revisions, Owner: ds, Kind: kind, Selector: selector, Fresh: fresh,
		Wrote: func(cr *appsv1.ControllerRevision) { r.wrote.Wrote(key, r.revisions, cr) }}
	list, err := history.List(ctx)
	if err != nil {
		return 0, err
	}
	current, err := r.revision(ctx, history, list, ds)
	if errors.Is(err, revisions.ErrCollision) {
		next := ds.DeepCopy()
		next.Status.CollisionCount = new(deref(ds.Status.CollisionCount) + 1)
		made, err := r.client.DaemonSets(ds.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			r.wrote.Wrote(key, r.sets, made)
		}
		return 0, err
	}
	if err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return 0, nil
		}
		return 0, err
	}
	claimed, err := r.claim(ctx, ds, selector, fresh)
	if err != nil {
		return 0, err
	}
	v := r.view(ds, claimed, current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey], time.Now())
	again, manageErr := r.manage(ctx, key, v)
	if err := r.writeStatus(ctx, key, v); err != nil {
		return 0, err
	}
	if manageErr != nil {
		return 0, manageErr
	}
	live := map[string]bool{current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]: true}
	for _, p := range claimed {
		live[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	err = history.Trim(ctx, list, ds.Spec.RevisionHistoryLimit, func(cr *appsv1.ControllerRevision) bool {
		return live[cr.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
	})
	return again, err
}

func (r *reconciler) revision(ctx context.Context, h revisions.History, list []*appsv1.ControllerRevision, ds *appsv1.DaemonSet) (*appsv1.ControllerRevision, error) {
	data, err := revisions.Data(&ds.Spec.Template)
	if err != nil {
		return nil, err
	}
	hash := pods.TemplateHash(&ds.Spec.Template, ds.Status.CollisionCount)
	bear := maps.Clone(ds.Spec.Template.Labels)
	if bear == nil {
		bear = map[string]string{}
	}
	bear[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	return h.Ensure(ctx, list, data, ds.Name+"-"+hash, bear)
}

func (r *reconciler) claim(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector, fresh func(context.Context) (metav1.Object, error)) ([]*corev1.Pod, error) {
	all, err := ownership.Of[*corev1.Pod](r.pods, ds, true)
	if err != nil {
		return nil, err
	}
	claim := ownership.Claim[*corev1.Pod]{Owner: ds, Kind: kind, Selector: selector, Fresh: fresh, Patch: r.podControl.Patch}
	return claim.Objects(ctx, all)
}

// manage creates and deletes pods as planned.
func (r *reconciler) manage(ctx context.Context, key cache.ObjectName, v *view) (again time.Duration, err error) {
	create, remove := v.plan()
	for _, p := range v.ended() {
		id := fmt.Sprintf("%s/%d/%s", v.ds.UID, v.ds.Status.ObservedGeneration, p.Spec.NodeName)
		reason, message := "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it"
		if p.Status.Phase == corev1.PodFailed {
			if r.failed.IsInBackOffSinceUpdate(id, v.now) {
				left := r.failed.Get(id)
				if again == 0 || left < again {
					again = left
				}
				continue
			}
			r.failed.Next(id, v.now)
			r.failed.GC()
			reason, message = "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it"
		}
		kind := corev1.EventTypeNormal
		if reason == "FailedDaemonPod" {
			kind = corev1.EventTypeWarning
		}
		r.events.Eventf(v.ds, kind, reason, message, p.Namespace, p.Name, p.Spec.NodeName)
		remove = append(remove, p)
	}
	ref := metav1.NewControllerRef(v.ds, kind)
	_, err = pods.SlowStart(len(create), func(i int) error {
		made, err := r.podControl.Create(ctx, v.pod(create[i], ref), v.ds)
		if err == nil {
			r.wrote.Wrote(key, r.pods, made)
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	})
	_, derr := pods.Parallel(len(remove), func(i int) error {
		err := r.podControl.Delete(ctx, remove[i], v.ds)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err == nil {
			r.wrote.Deleted(key, r.pods, remove[i])
		}
		return err
	})
	if left := v.untilAvailable(); left > 0 && (again == 0 || left < again) {
		again = left
	}
	return again, errors.Join(err, derr)
}

func (r *reconciler) writeStatus(ctx context.Context, key cache.ObjectName, v *view) error {
	next := v.status()
	if apiequality.Semantic.DeepEqual(next, v.ds.Status) {
		return nil
	}
	ds := v.ds.DeepCopy()
	ds.Status = next
	made, err := r.client.DaemonSets(ds.Namespace).UpdateStatus(ctx, ds, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.wrote.Wrote(key, r.sets, made)
	}
	return err
}

func deref(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}
