package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

var persistentVolumeClaims = &Kind[*corev1.PersistentVolumeClaim]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	Plural:           "persistentvolumeclaims",
	RecheckName:      true,
	Short:            []string{"pvc"},

	Default:    defaultClaim,
	Incomplete: true, // the phase
	Prepare: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
		if old != nil {
			c.Status = old.Status
		} else {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		}
		if old == nil || old.Spec.DataSource == nil && old.Spec.DataSourceRef == nil {
			dropForeignDataSource(&c.Spec)
		}
		normalizeDataSources(&c.Spec)
	},
	Validate: validateClaim,
	Columns: []Column[*corev1.PersistentVolumeClaim]{
		nameColumn[*corev1.PersistentVolumeClaim](),
		column("Status", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"], 0, func(c *corev1.PersistentVolumeClaim) any {
			if c.DeletionTimestamp != nil {
				return "Terminating"
			}
			return string(c.Status.Phase)
		}),
		column("Volume", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"], 0,
			func(c *corev1.PersistentVolumeClaim) any { return c.Spec.VolumeName }),
		column("Capacity", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"], 0, func(c *corev1.PersistentVolumeClaim) any {
			if c.Spec.VolumeName == "" {
				return ""
			}
			q := c.Status.Capacity[corev1.ResourceStorage]
			return q.String()
		}),
		column("Access Modes", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"], 0, func(c *corev1.PersistentVolumeClaim) any {
			if c.Spec.VolumeName == "" {
				return ""
			}
			return accessModes(c.Status.AccessModes)
		}),
		column("StorageClass", "string", "StorageClass of the pvc", 0, func(c *corev1.PersistentVolumeClaim) any {
			if class, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
				return class
			}
			return deref(c.Spec.StorageClassName, "")
		}),
		column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc", 0,
			func(c *corev1.PersistentVolumeClaim) any { return deref(c.Spec.VolumeAttributesClassName, "<unset>") }),
		ageColumn[*corev1.PersistentVolumeClaim](),
		column("VolumeMode", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"], 1,
			func(c *corev1.PersistentVolumeClaim) any { return string(deref(c.Spec.VolumeMode, "<unset>")) }),
	},
	Sub: []Subresource[*corev1.PersistentVolumeClaim]{
		statusOf(func(c, old *corev1.PersistentVolumeClaim) { c.Spec = old.Spec }, validateClaimStatus),
	},
}

func defaultClaim(c *corev1.PersistentVolumeClaim) {
	fill(&c.Status.Phase, corev1.ClaimPending)
	defaultClaimSpec(&c.Spec)
	roundUp(c.Status.Capacity)
	roundUp(c.Status.AllocatedResources)
}

// dropForeignDataSource forgets a dataSource of a kind that nothing fills from.
func dropForeignDataSource(s *corev1.PersistentVolumeClaimSpec) {
	if s.DataSourceRef != nil && deref(s.DataSourceRef.Namespace, "") != "" {
		s.DataSourceRef = nil // sources in other namespaces are off by default upstream
	}
	if s.DataSource == nil || s.DataSourceRef != nil {
		return
	}
	claim := s.DataSource.Kind == "PersistentVolumeClaim" && deref(s.DataSource.APIGroup, "") == ""
	snapshot := s.DataSource.Kind == "VolumeSnapshot" && deref(s.DataSource.APIGroup, "") == "snapshot.storage.k8s.io"
	if !claim && !snapshot {
		s.DataSource = nil
	}
}

// normalizeDataSources keeps dataSource and dataSourceRef the same where the
// old field can say it.
func normalizeDataSources(s *corev1.PersistentVolumeClaimSpec) {
	switch {
	case s.DataSource != nil && s.DataSourceRef == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{
			APIGroup: s.DataSource.APIGroup, Kind: s.DataSource.Kind, Name: s.DataSource.Name}
	case s.DataSourceRef != nil && s.DataSource == nil && deref(s.DataSourceRef.Namespace, "") == "":
		s.DataSource = &corev1.TypedLocalObjectReference{
			APIGroup: s.DataSourceRef.APIGroup, Kind: s.DataSourceRef.Kind, Name: s.DataSourceRef.Name}
	}
}
