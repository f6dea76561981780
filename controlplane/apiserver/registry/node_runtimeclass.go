package registry

import (
	"context"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var runtimeClasses = &Kind[*nodev1.RuntimeClass]{
	GroupVersionKind: nodev1.SchemeGroupVersion.WithKind("RuntimeClass"),
	Plural:           "runtimeclasses",
	Metadata:         Plain,
	RecheckName:      true,
	Cluster:          true,
	CreateOnUpdate:   true,
	Conditional:      true,

	Default: func(c *nodev1.RuntimeClass) {
		if c.Overhead != nil {
			roundUp(c.Overhead.PodFixed)
		}
	},
	Validate: func(_ context.Context, c, old *nodev1.RuntimeClass) (errs field.ErrorList) {
		if old != nil {
			errs = unchanged(c.Handler, old.Handler, field.NewPath("handler"))
		}
		return append(errs, validateRuntimeClass(c)...)
	},
	Columns: []Column[*nodev1.RuntimeClass]{
		nameColumn[*nodev1.RuntimeClass](),
		column("Handler", "string", metav1.ObjectMeta{}.SwaggerDoc()["handler"], 0,
			func(c *nodev1.RuntimeClass) any { return c.Handler }),
		ageColumn[*nodev1.RuntimeClass](),
	},
}
