package registry

import (
	corev1 "k8s.io/api/core/v1"
)

var configMaps = &Kind[*corev1.ConfigMap]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	Plural:           "configmaps",
	Short:            []string{"cm"},
	Columns: []Column[*corev1.ConfigMap]{
		nameColumn[*corev1.ConfigMap](),
		column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"], 0,
			func(c *corev1.ConfigMap) any { return int64(len(c.Data) + len(c.BinaryData)) }),
		ageColumn[*corev1.ConfigMap](),
	},
}
