package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var configMaps = &Kind[*corev1.ConfigMap]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	Plural:           "configmaps",
	RecheckName:      true,
	Short:            []string{"cm"},

	Validate: func(_ context.Context, c, old *corev1.ConfigMap) (errs field.ErrorList) {
		if old != nil {
			errs = validateConfigMapUpdate(c, old)
		}
		size := 0
		for _, key := range sortedKeys(c.Data) {
			errs = append(errs, validateDataKey(key, field.NewPath("data").Key(key))...)
			if _, both := c.BinaryData[key]; both {
				errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
			}
			size += len(c.Data[key])
		}
		for _, key := range sortedKeys(c.BinaryData) {
			errs = append(errs, validateDataKey(key, field.NewPath("binaryData").Key(key))...)
			size += len(c.BinaryData[key])
		}
		if size > corev1.MaxSecretSize {
			// the path is empty: the whole object is too long
			errs = append(errs, field.TooLong(field.NewPath(""), "" /*unused*/, corev1.MaxSecretSize))
		}
		return errs
	},
	Columns: []Column[*corev1.ConfigMap]{
		nameColumn[*corev1.ConfigMap](),
		column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"], 0,
			func(c *corev1.ConfigMap) any { return int64(len(c.Data) + len(c.BinaryData)) }),
		ageColumn[*corev1.ConfigMap](),
	},
}

const immutableData = "field is immutable when `immutable` is set"

func validateConfigMapUpdate(c, old *corev1.ConfigMap) (errs field.ErrorList) {
	if !deref(old.Immutable, false) {
		return nil
	}
	if !deref(c.Immutable, false) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableData))
	}
	if !same(c.Data, old.Data) {
		errs = append(errs, field.Forbidden(field.NewPath("data"), immutableData))
	}
	if !same(c.BinaryData, old.BinaryData) {
		errs = append(errs, field.Forbidden(field.NewPath("binaryData"), immutableData))
	}
	return errs
}

func validateDataKey(key string, at *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(at, key, msg))
	}
	return errs
}
