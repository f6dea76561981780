package protection

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

const (
	// Volumes is the name of the controller of PersistentVolumes.
	Volumes         = "persistentvolume-protection-controller"
	volumeFinalizer = "kubernetes.io/pv-protection"
)

type volumes struct {
	volumes cache.Indexer
	client  kubernetes.Interface
}

// NewVolumes returns the controller of PersistentVolumes: a volume is used while
// it is bound.
func NewVolumes(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	all := f.Core().V1().PersistentVolumes().Informer()
	r := &volumes{all.GetIndexer(), client}
	return &controller.Controller[string]{
		Name:      Volumes,
		Sources:   []controller.Source[string]{{Informer: all, Keys: changing(volumeFinalizer)}},
		Reconcile: r.reconcile,
	}
}

// changing is the name of an object whose finalizer may have to change.
func changing(finalizer string) func(metav1.Object) []string {
	return func(o metav1.Object) []string {
		if unfinished(o, finalizer) {
			return []string{o.GetName()}
		}
		return nil
	}
}

func (r *volumes) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.volumes.GetByKey(name)
	if err != nil || !ok {
		return 0, err
	}
	volume := obj.(*corev1.PersistentVolume)
	if !unfinished(volume, volumeFinalizer) || volume.DeletionTimestamp != nil && volume.Status.Phase == corev1.VolumeBound {
		return 0, nil
	}
	volume = volume.DeepCopy()
	finish(volume, volumeFinalizer)
	_, err = r.client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{})
	return 0, gone(err)
}
