package structured

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
)

// Claims compiles expressions about claims and users.
var Claims = sync.OnceValue(authenticationcel.NewDefaultCompiler)

// Authentication says which issuers of tokens are believed, and who may come
// without credentials.
type Authentication struct {
	*apiserver.AuthenticationConfiguration
	// File it was read from, and is followed by; empty: from flags.
	File string
	// Algorithms a token may be signed with.
	Algorithms []string
	data       string
}

// Algorithms are those that tokens of other issuers may be signed with: none of
// them works with a shared secret.
var Algorithms = []string{"ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}

// ReadAuthentication reads file.
func ReadAuthentication(file string) (*Authentication, error) {
	data, err := os.ReadFile(file)
	if err == nil {
		var c *apiserver.AuthenticationConfiguration
		if c, err = authentication(data); err == nil {
			return &Authentication{AuthenticationConfiguration: c, File: file, Algorithms: Algorithms, data: string(data)}, nil
		}
	}
	return nil, fmt.Errorf("failed to load authentication configuration from file %q: %w", file, err)
}

// Validate judges what was read; issuers are those of service-account tokens.
func (a *Authentication) Validate(issuers []string) error {
	if err := validation.ValidateAuthenticationConfiguration(Claims(), a.AuthenticationConfiguration, issuers).ToAggregate(); err != nil {
		return fmt.Errorf("invalid authentication configuration: %w", err)
	}
	for _, alg := range a.Algorithms {
		if !slices.Contains(Algorithms, alg) {
			return fmt.Errorf("oidc: unsupported signing alg: %q", alg)
		}
	}
	for i := range a.JWT {
		if egress := a.JWT[i].Issuer.EgressSelectorType; egress != "" {
			return fmt.Errorf("oidc: egress lookup required with egress selector type %q", egress)
		}
	}
	return nil
}

// Again reads the file once more: nil when it has not changed. What is wrong
// with it stays wrong until it changes.
func (a *Authentication) Again(issuers []string) (*Authentication, error) {
	data, err := os.ReadFile(a.File)
	if err != nil {
		return nil, fmt.Errorf("failed to read authentication config file: %w", err)
	}
	if string(data) == a.data {
		return nil, nil
	}
	a.data = string(data)
	c, err := authentication(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load authentication config: %w", err)
	}
	now := &Authentication{AuthenticationConfiguration: c, File: a.File, Algorithms: a.Algorithms, data: a.data}
	if !reflect.DeepEqual(a.Anonymous, c.Anonymous) {
		return nil, fmt.Errorf("failed to validate authentication config: %w", field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	if err := now.Validate(issuers); err != nil {
		return nil, fmt.Errorf("failed to validate authentication config: %w", err)
	}
	return now, nil
}

// Forget makes Again take the same content for a change.
func (a *Authentication) Forget() { a.data = "" }
