package definition

import (
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"
)

// knownReviews are the versions of ConversionReview that are spoken here.
var knownReviews = sets.New("v1", "v1beta1")

func (c *checker) conversion(conv *apiextensions.CustomResourceConversion, at *field.Path) {
	if conv == nil {
		return
	}
	c.oneOf(at.Child("strategy"), string(conv.Strategy), string(apiextensions.NoneConverter), string(apiextensions.WebhookConverter))
	client, versions := at.Child("webhookClientConfig"), at.Child("conversionReviewVersions")
	if conv.Strategy != apiextensions.WebhookConverter {
		if conv.WebhookClientConfig != nil {
			c.forbidden(client, "should not be set when strategy is not set to Webhook")
		}
		if len(conv.ConversionReviewVersions) > 0 {
			c.forbidden(versions, "should not be set when strategy is not set to Webhook")
		}
		return
	}
	if cc := conv.WebhookClientConfig; cc == nil {
		c.required(client, "required when strategy is set to Webhook")
	} else {
		switch {
		case (cc.URL == nil) == (cc.Service == nil):
			c.required(client, "exactly one of url or service is required")
		case cc.URL != nil:
			c.faults = append(c.faults, URLFaults(*cc.URL, client.Child("url"))...)
		default:
			s := cc.Service
			c.faults = append(c.faults, ServiceFaults(s.Namespace, s.Name, s.Port, s.Path, client.Child("service"))...)
		}
		if c.bundle {
			if err := BundleFault(cc.CABundle); err != nil {
				c.invalid(client.Child("caBundle"), cc.CABundle, err.Error())
			}
		}
	}
	c.reviews(conv.ConversionReviewVersions, versions)
}

// BundleFault says why data are no certificates that TLS can check with.
func BundleFault(data []byte) error {
	_, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAData: data}})
	return err
}

func (c *checker) reviews(versions []string, at *field.Path) {
	if len(versions) == 0 {
		c.required(at, "")
		return
	}
	seen := sets.New[string]()
	for i, v := range versions {
		if seen.Has(v) {
			c.invalid(at.Index(i), v, "duplicate version")
			continue
		}
		seen.Insert(v)
		for _, msg := range utilvalidation.IsDNS1035Label(v) {
			c.invalid(at.Index(i), v, msg)
		}
	}
	if c.reviewVersions && !seen.HasAny(knownReviews.UnsortedList()...) {
		c.invalid(at, versions, "must include at least one of "+strings.Join(sets.List(knownReviews), ", "))
	}
}
