package protection

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

const (
	// Classes is the name of the controller of VolumeAttributesClasses.
	Classes        = "volumeattributesclass-protection-controller"
	classFinalizer = "kubernetes.io/vac-protection"
)

type classes struct {
	classes, claims, volumes cache.Indexer
	client                   kubernetes.Interface
}

// NewClasses returns the controller of VolumeAttributesClasses: one is used
// while a claim or volume names it.
func NewClasses(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	all := f.Storage().V1().VolumeAttributesClasses().Informer()
	claims, volumes := f.Core().V1().PersistentVolumeClaims().Informer(), f.Core().V1().PersistentVolumes().Informer()
	r := &classes{all.GetIndexer(), claims.GetIndexer(), volumes.GetIndexer(), client}
	return &controller.Controller[string]{
		Name: Classes,
		Sources: []controller.Source[string]{
			{Informer: all, Keys: changing(classFinalizer)},
			{Informer: claims, Keys: r.waiting},
			{Informer: volumes, Keys: r.waiting},
		},
		Reconcile: r.reconcile,
	}
}

// named are the classes that a claim has, wants or is getting, or a volume has.
func named(o any) (names []string) {
	add := func(name *string) {
		if name != nil && *name != "" && !slices.Contains(names, *name) {
			names = append(names, *name)
		}
	}
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		add(o.Spec.VolumeAttributesClassName)
		add(o.Status.CurrentVolumeAttributesClassName)
		if m := o.Status.ModifyVolumeStatus; m != nil {
			add(&m.TargetVolumeAttributesClassName)
		}
	case *corev1.PersistentVolume:
		add(o.Spec.VolumeAttributesClassName)
	}
	return names
}

// waiting are the classes named by o that have something to do.
func (r *classes) waiting(o metav1.Object) []string {
	return slices.DeleteFunc(named(o), func(name string) bool {
		class, ok, err := r.classes.GetByKey(name)
		return err != nil || !ok || !unfinished(class.(*storagev1.VolumeAttributesClass), classFinalizer)
	})
}

func (r *classes) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.classes.GetByKey(name)
	if err != nil || !ok {
		return 0, err
	}
	class := obj.(*storagev1.VolumeAttributesClass)
	if !unfinished(class, classFinalizer) {
		return 0, nil
	}
	if class.DeletionTimestamp != nil {
		if used, err := r.used(ctx, name); err != nil || used {
			return 0, err
		}
	}
	class = class.DeepCopy()
	finish(class, classFinalizer)
	_, err = r.client.StorageV1().VolumeAttributesClasses().Update(ctx, class, metav1.UpdateOptions{})
	return 0, gone(err)
}

// used reports whether a claim or a volume names the class. The cache may be behind,
// so a class is let go of only after the server was asked. What the server knows
// and the cache does not brings its event.
func (r *classes) used(ctx context.Context, name string) (bool, error) {
	for _, all := range []cache.Indexer{r.claims, r.volumes} {
		if slices.ContainsFunc(all.List(), func(o any) bool { return slices.Contains(named(o), name) }) {
			return true, nil
		}
	}
	claims, err := r.client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list claims: %w", err)
	}
	for i := range claims.Items {
		if slices.Contains(named(&claims.Items[i]), name) {
			return true, nil
		}
	}
	volumes, err := r.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list volumes: %w", err)
	}
	for i := range volumes.Items {
		if slices.Contains(named(&volumes.Items[i]), name) {
			return true, nil
		}
	}
	return false, nil
}
