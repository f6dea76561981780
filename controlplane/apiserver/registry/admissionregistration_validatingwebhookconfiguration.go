package registry

import (
	"context"
	"reflect"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var validatingWebhookConfigurations = &Kind[*admissionv1.ValidatingWebhookConfiguration]{
	GroupVersionKind: admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"),
	Plural:           "validatingwebhookconfigurations",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,

	Default: func(c *admissionv1.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			h := &c.Webhooks[i]
			defaultWebhook(&h.FailurePolicy, &h.MatchPolicy, &h.NamespaceSelector, &h.ObjectSelector, &h.TimeoutSeconds, h.Rules, h.ClientConfig.Service)
		}
	},
	Prepare: generations(func(c, old *admissionv1.ValidatingWebhookConfiguration) bool {
		return !reflect.DeepEqual(c.Webhooks, old.Webhooks)
	}),
	Validate: func(_ context.Context, c, old *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
		if old == nil {
			return validateWebhooks(asMutating(c.Webhooks), nil, false)
		}
		return validateWebhooks(asMutating(c.Webhooks), asMutating(old.Webhooks), true)
	},
	Warn: func(_ context.Context, c, _ *admissionv1.ValidatingWebhookConfiguration) []string {
		return staticSuffix(c.Name)
	},
	Columns: []Column[*admissionv1.ValidatingWebhookConfiguration]{
		nameColumn[*admissionv1.ValidatingWebhookConfiguration](),
		column("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration", 0,
			func(c *admissionv1.ValidatingWebhookConfiguration) any { return int64(len(c.Webhooks)) }),
		ageColumn[*admissionv1.ValidatingWebhookConfiguration](),
	},
}

// generations is the Prepare of a kind without a status: a new generation for
// each change.
func generations[T Object](changed func(obj, old T) bool) func(context.Context, T, T) {
	return spec(func(T) {}, func(T, T) {}, changed)
}
