package definition

import (
	"fmt"
	"net/url"
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
			c.url(*cc.URL, client.Child("url"))
		default:
			c.service(cc.Service, client.Child("service"))
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

func (c *checker) url(text string, at *field.Path) {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		c.required(at, "url must be a valid URL: "+err.Error()+form)
		return
	}
	if u.Scheme != "https" {
		c.invalid(at, u.Scheme, "'https' is the only allowed URL scheme"+form)
	}
	if u.Host == "" {
		c.invalid(at, u.Host, "host must be specified"+form)
	}
	if u.User != nil {
		c.invalid(at, u.User.String(), "user information is not permitted in the URL")
	}
	if u.Fragment != "" {
		c.invalid(at, u.Fragment, "fragments are not permitted in the URL")
	}
	if u.RawQuery != "" {
		c.invalid(at, u.RawQuery, "query parameters are not permitted in the URL")
	}
}

// service checks a reference. Upstream hands name and namespace over in the
// wrong order, and so the paths of what is missing are swapped here, too.
func (c *checker) service(s *apiextensions.ServiceReference, at *field.Path) {
	if s.Namespace == "" {
		c.required(at.Child("name"), "")
	}
	if s.Name == "" {
		c.required(at.Child("namespace"), "")
	}
	if errs := utilvalidation.IsValidPortNum(int(s.Port)); errs != nil {
		c.invalid(at.Child("port"), s.Port, "port is not valid: "+strings.Join(errs, ", "))
	}
	if s.Path == nil || *s.Path == "" || *s.Path == "/" {
		return
	}
	at, path := at.Child("path"), *s.Path
	if path == "//" {
		c.invalid(at, path, "segment[0] may not be empty")
		return
	}
	if path[0] != '/' {
		c.invalid(at, path, "must start with a '/'")
	}
	for i, step := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if step == "" {
			c.invalid(at, path, fmt.Sprintf("segment[%d] may not be empty", i))
			continue
		}
		for _, msg := range utilvalidation.IsDNS1123Subdomain(step) {
			c.invalid(at, path, fmt.Sprintf("segment[%d]: %v", i, msg))
		}
	}
}
