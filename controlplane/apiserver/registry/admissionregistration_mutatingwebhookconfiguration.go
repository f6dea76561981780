package registry

import (
	"context"
	"reflect"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var mutatingWebhookConfigurations = &Kind[*admissionv1.MutatingWebhookConfiguration]{
	GroupVersionKind: admissionv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"),
	Plural:           "mutatingwebhookconfigurations",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,

	Default: func(c *admissionv1.MutatingWebhookConfiguration) {
		for i := range c.Webhooks {
			h := &c.Webhooks[i]
			defaultWebhook(&h.FailurePolicy, &h.MatchPolicy, &h.NamespaceSelector, &h.ObjectSelector, &h.TimeoutSeconds, h.Rules, h.ClientConfig.Service)
			if h.ReinvocationPolicy == nil {
				h.ReinvocationPolicy = new(admissionv1.NeverReinvocationPolicy)
			}
		}
	},
	Prepare: generations(func(c, old *admissionv1.MutatingWebhookConfiguration) bool {
		return !reflect.DeepEqual(c.Webhooks, old.Webhooks)
	}),
	Validate: func(_ context.Context, c, old *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
		if old == nil {
			return validateWebhooks(c.Webhooks, nil, false)
		}
		return validateWebhooks(c.Webhooks, old.Webhooks, true)
	},
	Warn: func(_ context.Context, c, _ *admissionv1.MutatingWebhookConfiguration) []string {
		return staticSuffix(c.Name)
	},
	Columns: []Column[*admissionv1.MutatingWebhookConfiguration]{
		nameColumn[*admissionv1.MutatingWebhookConfiguration](),
		column("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration", 0,
			func(c *admissionv1.MutatingWebhookConfiguration) any { return int64(len(c.Webhooks)) }),
		ageColumn[*admissionv1.MutatingWebhookConfiguration](),
	},
}
