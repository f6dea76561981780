// Package authn says who asks: one file per authenticator, tried in the order
// of the table in New. It reads certificates and tokens of requests and the
// ServiceAccounts, Pods, Nodes and Secrets that tokens are bound to.
package authn

import (
	"crypto/x509"
	"errors"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/watchcache"
)

// Config says whom to believe.
type Config struct {
	// ClientCA signs client certificates: CN is the user, O the groups.
	ClientCA *x509.CertPool
	// Tokens verifies service-account tokens.
	Tokens *ServiceAccountTokens
	// Cache holds the objects that tokens are bound to.
	Cache *watchcache.Cache
	// Static are tokens known beforehand, by token.
	Static map[string]user.Info
	// AnonymousPaths are the paths that anybody may ask for. Default
	// /livez, /readyz and /healthz. Elsewhere no credentials is 401.
	AnonymousPaths []string
}

// An Authenticator finds out who asks.
type Authenticator struct {
	requests  []authenticator.Request
	tokens    []authenticator.Token
	anonymous map[string]bool
}

// New returns the authenticators of c in their order.
func New(c Config) *Authenticator {
	a := &Authenticator{anonymous: map[string]bool{}}
	paths := c.AnonymousPaths
	if paths == nil {
		paths = []string{"/livez", "/readyz", "/healthz"}
	}
	for _, p := range paths {
		a.anonymous[p] = true
	}
	a.requests = []authenticator.Request{inProcess{}}
	if c.ClientCA != nil {
		a.requests = append(a.requests, newX509(c.ClientCA))
	}
	if len(c.Static) > 0 {
		a.tokens = append(a.tokens, static(c.Static))
	}
	if c.Tokens != nil {
		a.tokens = append(a.tokens, c.Tokens)
	}
	if c.Cache != nil {
		a.tokens = append(a.tokens, &bootstrap{c.Cache})
	}
	return a
}

// ErrUnauthorized says that credentials were given and are not good.
var ErrUnauthorized = errors.New("Unauthorized")

// Authenticate returns who asks, always with the group of all authenticated
// users; ErrUnauthorized when nobody is known by that and the path is not open to
// all. The token leaves the request, so that nobody after this sees it.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	var failed error
	for _, req := range a.requests {
		resp, ok, err := req.AuthenticateRequest(r)
		if ok {
			return authenticated(resp.User), nil
		}
		if err != nil {
			failed = err
		}
	}
	if token := bearer(r); token != "" {
		resp, ok, err := a.AuthenticateToken(r, token)
		if ok {
			r.Header.Del("Authorization")
			return authenticated(resp.User), nil
		}
		return nil, errors.Join(ErrUnauthorized, err)
	}
	if r.Header.Get("Authorization") != "" {
		return nil, ErrUnauthorized
	}
	if a.anonymous[r.URL.Path] {
		return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, nil
	}
	return nil, errors.Join(ErrUnauthorized, failed)
}

// AuthenticateToken tries the token authenticators, as TokenReview does.
func (a *Authenticator) AuthenticateToken(r *http.Request, token string) (*authenticator.Response, bool, error) {
	var failed error
	for _, t := range a.tokens {
		resp, ok, err := t.AuthenticateToken(r.Context(), token)
		if ok {
			return resp, true, nil
		}
		if err != nil {
			failed = err
		}
	}
	return nil, false, failed
}

// authenticated adds the group of everybody who is somebody.
func authenticated(u user.Info) user.Info {
	for _, g := range u.GetGroups() {
		if g == user.AllAuthenticated || g == user.AllUnauthenticated {
			return u
		}
	}
	return &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Extra: u.GetExtra(),
		Groups: append(append([]string(nil), u.GetGroups()...), user.AllAuthenticated),
	}
}
