package persistentvolume

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"knarr/internal/csimigration"
)

// inTreePrefix is that of the names of volume plugins within Kubernetes.
const inTreePrefix = "kubernetes.io/"

// The plugins within Kubernetes that provision, delete or recycle.
const (
	hostPath = "kubernetes.io/host-path"
	nfs      = "kubernetes.io/nfs"
)

// migrate writes the driver that has taken over from the provisioner into
// annotations that are not nil, and reports whether that changed them.
func migrate(annotations map[string]string, provisioner string) bool {
	have, want := annotations[volume.AnnMigratedTo], csimigration.Driver(provisioner)
	if have == want {
		return false
	}
	if want == "" {
		delete(annotations, volume.AnnMigratedTo)
	} else {
		annotations[volume.AnnMigratedTo] = want
	}
	return true
}

// migratedClaim is the claim with the right annotation, nil if it has it.
func migratedClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	by, ok := c.Annotations[volume.AnnStorageProvisioner]
	if !ok {
		by, ok = c.Annotations[volume.AnnBetaStorageProvisioner]
	}
	annotations := maps.Clone(c.Annotations)
	if !ok || !migrate(annotations, by) {
		return nil
	}
	c = c.DeepCopy()
	c.Annotations = annotations
	return c
}

// migratedVolume is the volume with the right annotation and finalizers, nil if
// it has them.
func migratedVolume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	by, ok := v.Annotations[volume.AnnDynamicallyProvisioned]
	if !ok {
		return nil
	}
	annotations := maps.Clone(v.Annotations)
	changed := migrate(annotations, by)
	finalizers := finalizersOf(v, by)
	if !changed && slices.Equal(finalizers, v.Finalizers) {
		return nil
	}
	v = v.DeepCopy()
	v.Annotations, v.Finalizers = annotations, finalizers
	return v
}

// finalizersOf are those that a provisioned volume is to have: one of this
// controller while it is the one that deletes it, none of the external
// provisioner then.
func finalizersOf(v *corev1.PersistentVolume, by string) []string {
	const own, external = volume.PVDeletionInTreeProtectionFinalizer, volume.PVDeletionProtectionFinalizer
	drop := func(all []string, name string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(f string) bool { return f == name })
	}
	if csimigration.Driver(by) != "" {
		return drop(v.Finalizers, own)
	}
	if !strings.HasPrefix(by, inTreePrefix) {
		return v.Finalizers
	}
	all := drop(v.Finalizers, external)
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete:
		// An object that is being deleted takes no more finalizers.
		if !slices.Contains(all, own) && v.DeletionTimestamp == nil {
			all = append(all, own)
		}
	case corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimRecycle:
		all = drop(all, own)
	}
	return all
}

// withoutFinalizer is the volume without it, nil if it has none.
func withoutFinalizer(v *corev1.PersistentVolume, name string) *corev1.PersistentVolume {
	if !slices.Contains(v.Finalizers, name) {
		return nil
	}
	v = v.DeepCopy()
	v.SetFinalizers(slices.DeleteFunc(v.GetFinalizers(), func(f string) bool { return f == name }))
	return v
}
