package apiflags

import (
	"fmt"
	"os"
	"strings"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"

	"knarr/controlplane/apiserver/structured"
)

// config is what the flags mean in terms of the file.
func (o *oidcFlags) config() (*structured.Authentication, error) {
	prefix := o.usernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && o.username != "email":
		prefix = o.issuer + "#"
	}
	jwt := apiserverapi.JWTAuthenticator{
		Issuer: apiserverapi.Issuer{URL: o.issuer, Audiences: []string{o.client}},
		ClaimMappings: apiserverapi.ClaimMappings{
			Username: apiserverapi.PrefixedClaimOrExpression{Prefix: &prefix, Claim: o.username},
		},
	}
	if o.groups != "" {
		jwt.ClaimMappings.Groups = apiserverapi.PrefixedClaimOrExpression{Prefix: &o.groupsPrefix, Claim: o.groups}
	}
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(pem)
	}
	values := map[string]string{} // the last of a name counts
	for _, s := range o.required {
		claim, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("--oidc-required-claim: malformed pair, expect string=string: %q", s)
		}
		values[strings.TrimSpace(claim)] = strings.TrimSpace(value)
	}
	for claim, value := range values {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules, apiserverapi.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	return &structured.Authentication{
		AuthenticationConfiguration: &apiserverapi.AuthenticationConfiguration{JWT: []apiserverapi.JWTAuthenticator{jwt}},
		Algorithms:                  o.algorithms,
	}, nil
}
