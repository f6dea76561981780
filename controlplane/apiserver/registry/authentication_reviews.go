package registry

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var tokenReviews = &Kind[*authenticationv1.TokenReview]{
	GroupVersionKind: authenticationv1.SchemeGroupVersion.WithKind("TokenReview"),
	Plural:           "tokenreviews",
	Cluster:          true,
	Virtual:          true,
}

var selfSubjectReviews = &Kind[*authenticationv1.SelfSubjectReview]{
	GroupVersionKind: authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"),
	Plural:           "selfsubjectreviews",
	Cluster:          true,
	Virtual:          true,
}

const (
	// shortest and longest life a token may be asked for.
	minTokenSeconds = 10 * 60
	maxTokenSeconds = 1 << 32
)

// DefaultTokenRequest fills a request for a service account's token.
func DefaultTokenRequest(r *authenticationv1.TokenRequest) {
	fillPtr(&r.Spec.ExpirationSeconds, 3600)
}

// ValidateTokenRequest checks a request for a service account's token, with its defaults.
func ValidateTokenRequest(r *authenticationv1.TokenRequest) (errs field.ErrorList) {
	at := field.NewPath("spec", "expirationSeconds")
	switch seconds := *r.Spec.ExpirationSeconds; {
	case seconds < minTokenSeconds:
		errs = append(errs, field.Invalid(at, seconds, "may not specify a duration less than 10 minutes"))
	case seconds > maxTokenSeconds:
		errs = append(errs, field.Invalid(at, seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}
