package apiserver

import (
	"log/slog"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/authn/oidc"
)

// TokenWebhook is a server that reviews tokens which no authenticator here knows.
type TokenWebhook struct {
	// Kubeconfig names it.
	Kubeconfig string
	// Version of the TokenReviews that it is asked by: v1 or v1beta1.
	Version string
	// TTL is how long its answers are remembered; 0 is not at all.
	TTL time.Duration
}

// goodTokens is how long a token of an issuer elsewhere stays good without
// being looked at again.
const goodTokens = 10 * time.Second

// clusterInfoPath is of the ConfigMap that nodes of kubeadm's learn of a cluster from
// before they have credentials; authorisation decides whether they may.
const clusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// authenticators makes the chain of authenticators.
func (s *Server) authenticators() (err error) {
	c := &s.cfg
	if s.tokens, err = authn.NewServiceAccountTokens(authn.TokenConfig{
		Key: c.ServiceAccountKey, Others: c.ServiceAccountPublicKeys, Issuers: c.Issuers, Audiences: c.Audiences,
		MaxSeconds: c.MaxTokenSeconds, Exact: c.ExactTokens,
	}, s.cache); err != nil {
		return err
	}
	if s.discovery, err = s.tokens.Discovery(c.keysAt()); err != nil {
		slog.Info("the issuer of service-account tokens cannot be discovered", "why", err)
	}
	a := authn.Config{
		ClientCA: c.ClientCA, FrontProxy: c.FrontProxy, Tokens: s.tokens, Cache: s.cache, Static: c.Tokens,
		NoBootstrapTokens: c.NoBootstrapTokens,
	}
	for path := range c.Open {
		a.AnonymousPaths = append(a.AnonymousPaths, path)
	}
	switch anonymous := c.Anonymous; {
	case anonymous == nil:
		a.AnonymousPaths = append(a.AnonymousPaths, "/livez", "/readyz", "/healthz", clusterInfoPath)
	case anonymous.Enabled:
		a.Anonymous = len(anonymous.Conditions) == 0
		for _, where := range anonymous.Conditions {
			a.AnonymousPaths = append(a.AnonymousPaths, where.Path)
		}
	}
	if c.Authentication != nil {
		if s.issuers, err = oidc.New(c.Authentication, c.Issuers); err != nil {
			return err
		}
		a.Remote = append(a.Remote, authn.WithCache(s.issuers, goodTokens, 0))
	}
	if w := c.TokenWebhook; w != nil {
		var hook authenticator.Token
		if hook, err = authn.NewWebhook(w.Kubeconfig, w.Version, s.tokens.Audiences()); err != nil {
			return err
		}
		a.Remote = append(a.Remote, authn.WithCache(hook, w.TTL, w.TTL))
	}
	s.authn = authn.New(a)
	return nil
}

// keysAt is where others find the keys of service-account tokens.
func (c *Config) keysAt() string {
	const path = "/openid/v1/jwks"
	switch {
	case c.JWKSURI != "":
		return c.JWKSURI
	case c.Advertise.IsValid():
		return "https://" + c.Advertise.String() + path
	}
	return c.Issuers[0] + path
}
