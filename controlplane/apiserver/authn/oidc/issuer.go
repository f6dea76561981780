package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"

	"knarr/controlplane/apiserver/structured"
)

var _ authenticator.Token = (*Issuers)(nil)

// An issuer is one whose tokens are believed.
type issuer struct {
	config   *apiserver.JWTAuthenticator
	rules    authenticationcel.CELMapper
	required map[string]string // claims and their values
	client   *http.Client
	checks   checks
	others   *others // where distributed groups come from

	keys  atomic.Pointer[keySet]
	known chan struct{} // closed when keys is set
	last  atomic.Pointer[error]
}

func newIssuer(c *apiserver.JWTAuthenticator, algorithms, disallowed []string) (*issuer, error) {
	rules, errs := validation.CompileAndValidateJWTAuthenticator(structured.Claims(), *c, disallowed)
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	o := &issuer{
		config: c, rules: rules, required: map[string]string{}, known: make(chan struct{}),
		checks: checks{algorithms: algorithms, audiences: c.Issuer.Audiences},
	}
	var err error
	if o.client, err = clientOf([]byte(c.Issuer.CertificateAuthority)); err != nil {
		return nil, err
	}
	for _, r := range c.ClaimValidationRules {
		if r.Claim != "" {
			o.required[r.Claim] = r.RequiredValue
		}
	}
	if claim := c.ClaimMappings.Groups.Claim; claim != "" {
		o.others = &others{claim: claim, client: o.client, checks: o.checks, by: map[string]*keySet{}}
	}
	return o, nil
}

// clientOf reaches servers signed by ca or, without one, by an authority that this host trusts.
func clientOf(ca []byte) (*http.Client, error) {
	var roots *x509.CertPool
	if len(ca) > 0 {
		var err error
		if roots, err = cert.NewPoolFromBytes(ca); err != nil {
			return nil, err
		}
	}
	return &http.Client{Timeout: 30 * time.Second, Transport: utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	})}, nil
}

// discover asks the issuer who it is until it answers or ctx ends.
func (o *issuer) discover(ctx context.Context) {
	for {
		k, err := provide(ctx, o.client, o.config.Issuer.URL, o.config.Issuer.DiscoveryURL)
		if err == nil {
			o.keys.Store(k)
			close(o.known)
			return
		}
		if ctx.Err() != nil {
			return
		}
		o.last.Store(&err)
		slog.ErrorContext(ctx, "oidc authenticator: initializing plugin", "issuer", o.config.Issuer.URL, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

var errUninitialised = errors.New("oidc: authenticator not initialized")

// authenticate says who the bearer is of a token that names this issuer.
func (o *issuer) authenticate(ctx context.Context, token string) (user.Info, error) {
	k := o.keys.Load()
	if k == nil {
		return nil, errUninitialised
	}
	c, err := o.checks.verify(ctx, k, o.config.Issuer.URL, token)
	if err != nil {
		return nil, prefixed("verify token", err)
	}
	if o.others != nil {
		if err := o.others.expand(ctx, c); err != nil {
			return nil, prefixed("could not expand distributed claims", err)
		}
	}
	return o.user(ctx, c)
}
