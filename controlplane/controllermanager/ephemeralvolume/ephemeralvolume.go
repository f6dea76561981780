// Package ephemeralvolume is the ephemeral-volume-controller. It reads Pods and
// PersistentVolumeClaims, and creates the claims of pods' generic ephemeral
// volumes, which the pods own.
package ephemeralvolume

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "ephemeral-volume-controller"

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

type reconciler struct {
	pods, claims cache.Indexer
	client       kubernetes.Interface
	events       record.EventRecorder
}

// New returns the controller. Its keys are pods.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	podInformer, claims := f.Core().V1().Pods().Informer(), f.Core().V1().PersistentVolumeClaims().Informer()
	if err := pods.IndexClaims(podInformer); err != nil {
		return nil, err
	}
	r := &reconciler{podInformer.GetIndexer(), claims.GetIndexer(), client, events}
	return &controller.Controller[cache.ObjectName]{
		Name: Name,
		Sources: []controller.Source[cache.ObjectName]{
			{Informer: podInformer, Keys: keys},
			{Informer: claims, Keys: r.owner},
		},
		Reconcile: controller.Existing(r.pods, r.reconcile),
	}, nil
}

// keys is the pod, if it is to have claims.
func keys(o metav1.Object) []cache.ObjectName {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.DeletionTimestamp != nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return []cache.ObjectName{cache.MetaObjectToName(pod)}
		}
	}
	return nil
}

// owner are the pods that a claim is for: one that was deleted is made again.
func (r *reconciler) owner(o metav1.Object) (names []cache.ObjectName) {
	list, err := pods.Claiming(r.pods, cache.MetaObjectToName(o))
	if err != nil {
		return nil
	}
	for _, pod := range list {
		names = append(names, keys(pod)...)
	}
	return names
}

func (r *reconciler) reconcile(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	if pod.DeletionTimestamp != nil {
		return 0, nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil {
			continue
		}
		if err := r.ensure(ctx, pod, v); err != nil {
			r.events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			return 0, fmt.Errorf("pod %s, ephemeral volume %s: %w", cache.MetaObjectToName(pod), v.Name, err)
		}
	}
	return 0, nil
}

// ensure creates the claim of the pod's volume, unless it is there. Another's
// claim of that name is an error.
func (r *reconciler) ensure(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	want := claim(pod, v)
	obj, ok, err := r.claims.GetByKey(pod.Namespace + "/" + want.Name)
	if err != nil {
		return err
	}
	if ok {
		return ephemeral.VolumeIsForPod(pod, obj.(*corev1.PersistentVolumeClaim))
	}
	api := r.client.CoreV1().PersistentVolumeClaims(pod.Namespace)
	creations.Inc()
	_, err = api.Create(ctx, want, metav1.CreateOptions{})
	if err != nil {
		failures.Inc()
	}
	if apierrors.IsAlreadyExists(err) { // the cache is behind
		have, getErr := api.Get(ctx, want.Name, metav1.GetOptions{})
		if getErr == nil {
			return ephemeral.VolumeIsForPod(pod, have)
		}
	}
	if err != nil {
		return fmt.Errorf("create PVC %s: %w", want.Name, err)
	}
	return nil
}

// claim is the one that the pod's volume is to have.
func claim(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolumeClaim {
	template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: ephemeral.VolumeClaimName(pod, v), Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, podKind)},
		},
		Spec: template.Spec,
	}
}
