package plugin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"knarr/controlplane/apiserver/admission"
)

// storageObjectInUseProtection keeps what describes storage for as long as it
// is used: the protection controllers take the finalizers off.
type storageObjectInUseProtection struct{}

func (storageObjectInUseProtection) Name() string { return "StorageObjectInUseProtection" }

func (storageObjectInUseProtection) Admit(_ context.Context, a *admission.Attributes) error {
	if a.Operation != admission.Create || a.Subresource != "" {
		return nil
	}
	switch o := a.Object.(type) {
	case *corev1.PersistentVolumeClaim:
		o.Finalizers = with(o.Finalizers, "kubernetes.io/pvc-protection")
	case *corev1.PersistentVolume:
		o.Finalizers = with(o.Finalizers, "kubernetes.io/pv-protection")
	case *storagev1.VolumeAttributesClass:
		o.Finalizers = with(o.Finalizers, "kubernetes.io/vac-protection")
	}
	return nil
}

func with(list []string, one string) []string {
	if slices.Contains(list, one) {
		return list
	}
	return append(list, one)
}
