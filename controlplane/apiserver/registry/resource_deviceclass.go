package registry

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var deviceClasses = &Kind[*resourcev1.DeviceClass]{
	GroupVersionKind: resourcev1.SchemeGroupVersion.WithKind("DeviceClass"),
	Plural:           "deviceclasses",
	Metadata:         Named,
	NameRule:         nameIsLong,
	RecheckName:      true,
	Cluster:          true,

	Prepare: func(_ context.Context, c, old *resourcev1.DeviceClass) {
		c.Generation = 1
		if old != nil {
			c.Generation = old.Generation
			if !same(c.Spec, old.Spec) {
				c.Generation++
			}
		}
	},
	Validate: func(_ context.Context, c, old *resourcev1.DeviceClass) field.ErrorList {
		return validateDeviceClass(c, old)
	},
	Columns: []Column[*resourcev1.DeviceClass]{
		nameColumn[*resourcev1.DeviceClass](),
		ageColumn[*resourcev1.DeviceClass](),
	},
}
