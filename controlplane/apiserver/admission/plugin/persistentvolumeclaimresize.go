package plugin

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// persistentVolumeClaimResize lets a claim grow only where its class says that
// volumes can.
type persistentVolumeClaimResize struct{ cache *watchcache.Cache }

func (*persistentVolumeClaimResize) Name() string { return "PersistentVolumeClaimResize" }

func (p *persistentVolumeClaimResize) Validate(_ context.Context, a *admission.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	old, had := a.Old.(*corev1.PersistentVolumeClaim)
	if !ok || !had || a.Operation != admission.Update || a.Subresource != "" {
		return nil
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case size.Cmp(old.Spec.Resources.Requests[corev1.ResourceStorage]) <= 0:
		return nil
	case old.Status.Phase != corev1.ClaimBound:
		return forbidden(a, errors.New("Only bound persistent volume claims can be expanded"))
	case !p.grows(volume.GetPersistentVolumeClaimClass(claim), volume.GetPersistentVolumeClaimClass(old)):
		return forbidden(a, errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
	}
	return nil
}

func (p *persistentVolumeClaimResize) grows(class, old string) bool {
	if class == "" || class != old {
		return false
	}
	c, ok := watchcache.Read[*storagev1.StorageClass](p.cache.Resource(storagev1.SchemeGroupVersion.WithResource("storageclasses")), class)
	return ok && c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion
}
