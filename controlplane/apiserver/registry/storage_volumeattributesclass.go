package registry

import (
	"context"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var volumeAttributesClasses = &Kind[*storagev1.VolumeAttributesClass]{
	GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("VolumeAttributesClass"),
	Plural:           "volumeattributesclasses",
	RecheckName:      true,
	Short:            []string{"vac"},
	Cluster:          true,

	Validate: func(_ context.Context, c, old *storagev1.VolumeAttributesClass) field.ErrorList {
		var f faults
		if old != nil {
			if c.DriverName != old.DriverName {
				f.forbidden(field.NewPath("driverName"), "updates to driverName are forbidden.")
			}
			if !same(c.Parameters, old.Parameters) {
				f.forbidden(field.NewPath("parameters"), "updates to parameters are forbidden.")
			}
		}
		if c.DriverName == "" {
			f.required(field.NewPath("driverName"), "")
		} else {
			f.add(qualifiedName(strings.ToLower(c.DriverName), field.NewPath("driverName")))
		}
		f.add(validateParameters(c.Parameters, field.NewPath("parameters")))
		if len(c.Parameters) == 0 {
			f.required(field.NewPath("parameters"), "must contain at least one key/value pair")
		}
		return f.list
	},
	Columns: []Column[*storagev1.VolumeAttributesClass]{
		nameColumn[*storagev1.VolumeAttributesClass](),
		column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"], 0,
			func(c *storagev1.VolumeAttributesClass) any { return c.DriverName }),
		ageColumn[*storagev1.VolumeAttributesClass](),
	},
}
