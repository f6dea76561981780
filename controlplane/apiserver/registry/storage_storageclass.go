package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var storageClasses = &Kind[*storagev1.StorageClass]{
	GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("StorageClass"),
	Plural:           "storageclasses",
	RecheckName:      true,
	Short:            []string{"sc"},
	Cluster:          true,

	Default: func(c *storagev1.StorageClass) {
		fillPtr(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
		fillPtr(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	},
	Validate: validateStorageClass,
	Warn: func(_ context.Context, c, _ *storagev1.StorageClass) []string {
		var warnings []string
		for i, term := range c.AllowedTopologies {
			for j, e := range term.MatchLabelExpressions {
				warnings = append(warnings, warnOldLabel(e.Key,
					field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key"))...)
			}
		}
		return warnings
	},
	Columns: []Column[*storagev1.StorageClass]{
		nameColumnOf(func(c *storagev1.StorageClass) any {
			if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
				c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true" {
				return c.Name + " (default)"
			}
			return c.Name
		}),
		column("Provisioner", "string", storagev1.StorageClass{}.SwaggerDoc()["provisioner"], 0,
			func(c *storagev1.StorageClass) any { return c.Provisioner }),
		column("ReclaimPolicy", "string", storagev1.StorageClass{}.SwaggerDoc()["reclaimPolicy"], 0,
			func(c *storagev1.StorageClass) any {
				return string(deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete))
			}),
		column("VolumeBindingMode", "string", storagev1.StorageClass{}.SwaggerDoc()["volumeBindingMode"], 0,
			func(c *storagev1.StorageClass) any {
				return string(deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate))
			}),
		column("AllowVolumeExpansion", "string", storagev1.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"], 0,
			func(c *storagev1.StorageClass) any { return deref(c.AllowVolumeExpansion, false) }),
		ageColumn[*storagev1.StorageClass](),
	},
}
