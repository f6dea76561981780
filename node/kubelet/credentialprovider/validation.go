package credentialprovider

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeletconfig "k8s.io/kubelet/config/v1"
)

// apiVersions are those of requests and answers, in the order of messages.
var apiVersions = []string{v1, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"}

const v1 = "credentialprovider.kubelet.k8s.io/v1"

var cacheTypes = []string{string(kubeletconfig.ServiceAccountServiceAccountTokenCacheType), string(kubeletconfig.TokenServiceAccountTokenCacheType)}

// validate says everything that is wrong with a configuration, in upstream's words.
func validate(c *kubeletconfig.CredentialProviderConfig) (all field.ErrorList) {
	path := field.NewPath("providers")
	if len(c.Providers) == 0 {
		all = append(all, field.Required(path, "at least 1 item in plugins is required"))
	}
	for i := range c.Providers {
		all = append(all, validateProvider(&c.Providers[i], path)...)
	}
	return all
}

func validateProvider(p *kubeletconfig.CredentialProvider, path *field.Path) (all field.ErrorList) {
	for _, of := range []struct {
		wrong bool
		why   string
	}{
		{strings.Contains(p.Name, "/"), "provider name cannot contain '/'"},
		{strings.Contains(p.Name, " "), "provider name cannot contain spaces"},
		{p.Name == ".", "provider name cannot be '.'"},
		{p.Name == "..", "provider name cannot be '..'"},
	} {
		if of.wrong {
			all = append(all, field.Invalid(path.Child("name"), p.Name, of.why))
		}
	}
	if p.APIVersion == "" {
		all = append(all, field.Required(path.Child("apiVersion"), ""))
	} else if !slices.Contains(apiVersions, p.APIVersion) {
		all = append(all, field.NotSupported(path.Child("apiVersion"), p.APIVersion, apiVersions))
	}
	if len(p.MatchImages) == 0 {
		all = append(all, field.Required(path.Child("matchImages"), "at least 1 item in matchImages is required"))
	}
	for _, m := range p.MatchImages {
		if _, err := parse(m); err != nil {
			all = append(all, field.Invalid(path.Child("matchImages"), m, fmt.Sprintf("match image is invalid: %s", err)))
		}
	}
	if d := p.DefaultCacheDuration; d == nil {
		all = append(all, field.Required(path.Child("defaultCacheDuration"), ""))
	} else if d.Duration < 0 {
		all = append(all, field.Invalid(path.Child("defaultCacheDuration"), d, "must be greater than or equal to 0"))
	}
	if p.TokenAttributes != nil {
		all = append(all, validateTokens(p, path.Child("tokenAttributes"))...)
	}
	return all
}

func validateTokens(p *kubeletconfig.CredentialProvider, path *field.Path) (all field.ErrorList) {
	t := p.TokenAttributes
	if t.ServiceAccountTokenAudience == "" {
		all = append(all, field.Required(path.Child("serviceAccountTokenAudience"), ""))
	}
	if t.RequireServiceAccount == nil {
		all = append(all, field.Required(path.Child("requireServiceAccount"), ""))
	}
	if p.APIVersion != v1 {
		all = append(all, field.Forbidden(path, fmt.Sprintf("tokenAttributes is only supported for %s API version", v1)))
	}
	required, optional := path.Child("requiredServiceAccountAnnotationKeys"), path.Child("optionalServiceAccountAnnotationKeys")
	if t.RequireServiceAccount != nil && !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		all = append(all, field.Forbidden(required, "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"))
	}
	all = append(all, validateKeys(required, t.RequiredServiceAccountAnnotationKeys)...)
	all = append(all, validateKeys(optional, t.OptionalServiceAccountAnnotationKeys)...)
	var both []string
	for _, k := range t.RequiredServiceAccountAnnotationKeys {
		if slices.Contains(t.OptionalServiceAccountAnnotationKeys, k) && !slices.Contains(both, k) {
			both = append(both, k)
		}
	}
	if slices.Sort(both); len(both) > 0 {
		all = append(all, field.Invalid(path, both, "annotation keys cannot be both required and optional"))
	}
	if t.CacheType == "" {
		all = append(all, field.Required(path.Child("cacheType"), "cacheType is required to be set when tokenAttributes is specified. Supported values are: "+strings.Join(cacheTypes, ", ")))
	} else if !slices.Contains(cacheTypes, string(t.CacheType)) {
		all = append(all, field.NotSupported(path.Child("cacheType"), t.CacheType, cacheTypes))
	}
	return all
}

func validateKeys(path *field.Path, keys []string) (all field.ErrorList) {
	for i, k := range keys {
		// Annotations may have upper case where qualified names may not.
		for _, msg := range validation.IsQualifiedName(strings.ToLower(k)) {
			all = append(all, field.Invalid(path, k, msg))
		}
		if slices.Contains(keys[:i], k) {
			all = append(all, field.Duplicate(path, k))
		}
	}
	return all
}
