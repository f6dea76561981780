package registry

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var secrets = &Kind[*corev1.Secret]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Secret"),
	Plural:           "secrets",
	RecheckName:      true,

	Default: func(s *corev1.Secret) {
		if len(s.StringData) > 0 && s.Data == nil {
			s.Data = make(map[string][]byte, len(s.StringData))
		}
		for k, v := range s.StringData { // written, never read back
			s.Data[k] = []byte(v)
		}
		s.StringData = nil
		if s.Type == "" {
			s.Type = corev1.SecretTypeOpaque
		}
	},
	Prepare: func(_ context.Context, s, old *corev1.Secret) {
		if old != nil && s.Type == "" {
			s.Type = old.Type
		}
	},
	Validate: func(_ context.Context, s, old *corev1.Secret) (errs field.ErrorList) {
		if old != nil {
			errs = validateSecretUpdate(s, old)
		}
		return append(errs, validateSecret(s)...)
	},
	Fields: func(s *corev1.Secret) fields.Set {
		return fields.Set{"type": string(s.Type)}
	},
	Columns: []Column[*corev1.Secret]{
		nameColumn[*corev1.Secret](),
		column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"], 0,
			func(s *corev1.Secret) any { return string(s.Type) }),
		column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"], 0,
			func(s *corev1.Secret) any { return int64(len(s.Data)) }),
		ageColumn[*corev1.Secret](),
	},
}

func validateSecretUpdate(s, old *corev1.Secret) (errs field.ErrorList) {
	errs = validation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type"))
	if deref(old.Immutable, false) {
		if !deref(s.Immutable, false) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableData))
		}
		if !same(s.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), immutableData))
		}
	}
	return errs
}

func validateSecret(s *corev1.Secret) (errs field.ErrorList) {
	data := field.NewPath("data")
	size := 0
	for _, key := range sortedKeys(s.Data) {
		errs = append(errs, validateDataKey(key, data.Key(key))...)
		size += len(s.Data[key])
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	need := func(key string) bool {
		_, ok := s.Data[key]
		if !ok {
			errs = append(errs, field.Required(data.Key(key), ""))
		}
		return ok
	}
	needJSON := func(key string) {
		if !need(key) {
			return
		}
		if err := json.Unmarshal(s.Data[key], &map[string]any{}); err != nil {
			errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", err.Error()))
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(
				field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		needJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		needJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey)
			need(corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey)
		need(corev1.TLSPrivateKeyKey)
	}
	return errs
}
