// Package protection is the persistentvolumeclaim-protection-controller, the
// persistentvolume-protection-controller and the
// volumeattributesclass-protection-controller. It reads PersistentVolumeClaims,
// PersistentVolumes, VolumeAttributesClasses and Pods, and writes the finalizers
// that keep the first three for as long as they are used.
package protection

import (
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unfinished says that o's finalizer may have to change: o is going and has it,
// or stays and has it not.
func unfinished(o metav1.Object, finalizer string) bool {
	return (o.GetDeletionTimestamp() != nil) == slices.Contains(o.GetFinalizers(), finalizer)
}

// finish gives o its finalizer or takes it away: a going object loses it, a
// staying one, made before there was protection, gets it.
func finish(o metav1.Object, finalizer string) {
	if o.GetDeletionTimestamp() == nil {
		o.SetFinalizers(append(o.GetFinalizers(), finalizer))
		return
	}
	o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizer }))
}

// gone forgives that the object is no more.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
