// Package deployment is the deployment-controller. It reads Deployments,
// ReplicaSets and Pods, creates, resizes, annotates, adopts and deletes
// ReplicaSets, and writes the status and revision of Deployments.
package deployment

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/ownwrites"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "deployment-controller"

var kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

func selectorOf(o any) *metav1.LabelSelector { return o.(*appsv1.Deployment).Spec.Selector }

type reconciler struct {
	deployments, sets, pods cache.Indexer
	client                  appsclient.AppsV1Interface
	events                  record.EventRecorder
	wrote                   *ownwrites.Log
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	deployments, sets, pods := f.Apps().V1().Deployments().Informer(), f.Apps().V1().ReplicaSets().Informer(), f.Core().V1().Pods().Informer()
	for _, inf := range []cache.SharedIndexInformer{sets, pods} {
		if err := ownership.Index(inf); err != nil {
			return nil, err
		}
	}
	r := &reconciler{deployments.GetIndexer(), sets.GetIndexer(), pods.GetIndexer(), client.AppsV1(), events, ownwrites.New()}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(deployments),
			ownership.Source(sets, kind.GroupKind(), ownership.Matching(r.deployments, selectorOf)),
			{Informer: pods, Keys: r.recreating},
		},
		Reconcile: ownwrites.Reconcile(r.wrote, r.deployments, r.reconcile),
	}, nil
}

// recreating names a pod's deployment if that waits for old pods to end.
func (r *reconciler) recreating(o metav1.Object) []cache.ObjectName {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return nil
	}
	rs, ok, err := r.sets.GetByKey(o.GetNamespace() + "/" + ref.Name)
	if err != nil || !ok {
		return nil
	}
	if ref = metav1.GetControllerOfNoCopy(rs.(metav1.Object)); ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	d, ok, err := r.deployments.GetByKey(o.GetNamespace() + "/" + ref.Name)
	if err != nil || !ok || d.(*appsv1.Deployment).Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	return []cache.ObjectName{cache.NewObjectName(o.GetNamespace(), ref.Name)}
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName, stored *appsv1.Deployment) (time.Duration, error) {
	x := &rollout{reconciler: r, key: key, stored: stored, d: stored.DeepCopy(), now: time.Now()}
	selector, err := metav1.LabelSelectorAsSelector(stored.Spec.Selector)
	if err != nil {
		return 0, nil // validation lets none through
	}
	if selector.Empty() {
		r.events.Event(stored, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		next := x.d.Status
		next.ObservedGeneration = stored.Generation
		return 0, x.write(ctx, next)
	}
	all, err := r.claim(ctx, stored, selector)
	if err != nil {
		return 0, err
	}
	x.sets = split(x.d, all)
	return x.run(ctx)
}

func (r *reconciler) claim(ctx context.Context, d *appsv1.Deployment, selector labels.Selector) ([]*appsv1.ReplicaSet, error) {
	all, err := ownership.Of[*appsv1.ReplicaSet](r.sets, d, true)
	if err != nil {
		return nil, err
	}
	claim := ownership.Claim[*appsv1.ReplicaSet]{
		Owner: d, Kind: kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return r.client.Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs *appsv1.ReplicaSet, kind types.PatchType, patch []byte) (*appsv1.ReplicaSet, error) {
			return r.client.ReplicaSets(rs.Namespace).Patch(ctx, rs.Name, kind, patch, metav1.PatchOptions{})
		},
	}
	return claim.Objects(ctx, all)
}

// write stores a status, and the revision, if they differ from what is stored.
func (x *rollout) write(ctx context.Context, next appsv1.DeploymentStatus) error {
	if equalStatus(&x.stored.Status, &next) && x.stored.Annotations[revisionAnnotation] == x.d.Annotations[revisionAnnotation] {
		return nil
	}
	d := x.stored.DeepCopy()
	d.Annotations, d.Status = x.d.Annotations, next
	made, err := x.client.Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		x.wrote.Wrote(x.key, x.deployments, made)
	}
	return err
}
