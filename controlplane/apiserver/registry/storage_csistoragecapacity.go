package registry

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var csiStorageCapacities = &Kind[*storagev1.CSIStorageCapacity]{
	GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("CSIStorageCapacity"),
	Plural:           "csistoragecapacities",
	RecheckName:      true,
	Conditional:      true,

	Validate: func(_ context.Context, c, old *storagev1.CSIStorageCapacity) field.ErrorList {
		var f faults
		f.add(metavalidation.ValidateLabelSelector(c.NodeTopology, metavalidation.LabelSelectorValidationOptions{}, field.NewPath("nodeTopology")))
		f.add(invalid(NameIsDNSSubdomain(c.StorageClassName, false), c.StorageClassName, field.NewPath("storageClassName")))
		if c.Capacity != nil && c.Capacity.Sign() < 0 {
			f.invalid(field.NewPath("capacity"), c.Capacity.String(), "must be greater than or equal to 0")
		}
		if old != nil {
			if !same(c.NodeTopology, old.NodeTopology) {
				f.invalid(field.NewPath("nodeTopology"), c.NodeTopology, "field is immutable")
			}
			f.add(unchanged(c.StorageClassName, old.StorageClassName, field.NewPath("storageClassName")))
		}
		return f.list
	},
}
