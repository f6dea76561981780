package registry

import (
	"context"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
)

var csiDrivers = &Kind[*storagev1.CSIDriver]{
	GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("CSIDriver"),
	Plural:           "csidrivers",
	Cluster:          true,
	Conditional:      true,

	Default: func(d *storagev1.CSIDriver) {
		fillPtr(&d.Spec.AttachRequired, true)
		fillPtr(&d.Spec.PodInfoOnMount, false)
		fillPtr(&d.Spec.StorageCapacity, false)
		fillPtr(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
		if len(d.Spec.VolumeLifecycleModes) == 0 {
			d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
		}
		fillPtr(&d.Spec.RequiresRepublish, false)
		fillPtr(&d.Spec.SELinuxMount, false)
	},
	Prepare: func(_ context.Context, d, old *storagev1.CSIDriver) {
		if old == nil || old.Spec.PreventPodSchedulingIfMissing == nil {
			d.Spec.PreventPodSchedulingIfMissing = nil // off by default upstream
		}
		if old == nil {
			return
		}
		d.Generation = old.Generation
		if !same(d.Spec, old.Spec) {
			d.Generation++
		}
	},
	Validate: validateCSIDriver,
	Warn: func(_ context.Context, d, old *storagev1.CSIDriver) []string {
		if old != nil && same(d.Spec.TokenRequests, old.Spec.TokenRequests) {
			return nil
		}
		if len(d.Spec.TokenRequests) > 0 && d.Spec.ServiceAccountTokenInSecrets == nil {
			return []string{"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"}
		}
		return nil
	},
	Columns: []Column[*storagev1.CSIDriver]{
		nameColumn[*storagev1.CSIDriver](),
		driverFlag("AttachRequired", "attachRequired", true, func(s *storagev1.CSIDriverSpec) *bool { return s.AttachRequired }),
		driverFlag("PodInfoOnMount", "podInfoOnMount", false, func(s *storagev1.CSIDriverSpec) *bool { return s.PodInfoOnMount }),
		driverFlag("StorageCapacity", "storageCapacity", false, func(s *storagev1.CSIDriverSpec) *bool { return s.StorageCapacity }),
		column("TokenRequests", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["tokenRequests"], 0, func(d *storagev1.CSIDriver) any {
			if d.Spec.TokenRequests == nil {
				return "<unset>"
			}
			var all []string
			for _, t := range d.Spec.TokenRequests {
				all = append(all, t.Audience)
			}
			return strings.Join(all, ",")
		}),
		driverFlag("RequiresRepublish", "requiresRepublish", false, func(s *storagev1.CSIDriverSpec) *bool { return s.RequiresRepublish }),
		column("Modes", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["volumeLifecycleModes"], 0, func(d *storagev1.CSIDriver) any {
			var all []string
			for _, m := range d.Spec.VolumeLifecycleModes {
				all = append(all, string(m))
			}
			return orElse(strings.Join(all, ","), "<none>")
		}),
		ageColumn[*storagev1.CSIDriver](),
	},
}

func driverFlag(name, doc string, otherwise bool, flag func(*storagev1.CSIDriverSpec) *bool) Column[*storagev1.CSIDriver] {
	return column(name, "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()[doc], 0,
		func(d *storagev1.CSIDriver) any { return deref(flag(&d.Spec), otherwise) })
}
