// Package authn authenticates requests: one file per authenticator, tried in the
// order of the table in New. It reads certificates and tokens of requests and the
// ServiceAccounts, Pods, Nodes and Secrets that tokens are bound to, and asks a
// webhook if there is one.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/watchcache"
)

// Config is what the authenticators trust.
type Config struct {
	// ClientCA signs client certificates: CN is the user, O the groups.
	ClientCA *x509.CertPool
	// FrontProxy is believed before all others. Nil: none is.
	FrontProxy *FrontProxy
	// Tokens verifies service-account tokens.
	Tokens *ServiceAccountTokens
	// Cache holds the objects that tokens are bound to.
	Cache *watchcache.Cache
	// Static are tokens known beforehand, by token.
	Static map[string]user.Info
	// NoBootstrapTokens believes none of the tokens that nodes join with.
	NoBootstrapTokens bool
	// Remote are asked last, in their order: what costs a question elsewhere.
	Remote []authenticator.Token
	// Anonymous says that anybody may ask for anything; authorisation decides.
	Anonymous bool
	// AnonymousPaths are the paths that anybody may ask for in any case.
	// Elsewhere no credentials is 401.
	AnonymousPaths []string
}

// An Authenticator authenticates requests.
type Authenticator struct {
	requests  []authenticator.Request
	tokens    []authenticator.Token
	proxy     *FrontProxy
	anybody   bool
	anonymous map[string]bool
}

// New returns the authenticators of c in their order.
func New(c Config) *Authenticator {
	a := &Authenticator{anonymous: map[string]bool{}, anybody: c.Anonymous, proxy: c.FrontProxy.withDefaults()}
	for _, p := range c.AnonymousPaths {
		a.anonymous[p] = true
	}
	a.requests = []authenticator.Request{inProcess{}}
	if a.proxy != nil {
		a.requests = append(a.requests, a.proxy)
	}
	if c.ClientCA != nil {
		a.requests = append(a.requests, newX509(c.ClientCA))
	}
	if len(c.Static) > 0 {
		a.tokens = append(a.tokens, static(c.Static))
	}
	if c.Tokens != nil {
		a.tokens = append(a.tokens, c.Tokens)
	}
	if c.Cache != nil && !c.NoBootstrapTokens {
		a.tokens = append(a.tokens, &bootstrap{c.Cache})
	}
	a.tokens = append(a.tokens, c.Remote...)
	return a
}

// ErrUnauthorized says that credentials were given and are not good.
var ErrUnauthorized = errors.New("Unauthorized")

// refused says why credentials are not good: to the log, never to who showed them.
type refused struct{ why error }

func (r refused) Error() string { return r.why.Error() }
func (r refused) Unwrap() []error {
	all := []error{ErrUnauthorized, r.why}
	if several, ok := r.why.(utilerrors.Aggregate); ok {
		all = append(all, several.Errors()...)
	}
	return all
}

func refuse(why error) error {
	if why == nil {
		return ErrUnauthorized
	}
	return refused{why}
}

// Noted is a user, or a refusal, of which the request's record and its answer
// say more.
type Noted interface{ Note(ctx context.Context) }

// Authenticate returns the user of a request, always with the group of all authenticated
// users; ErrUnauthorized when nobody is known by that and the path is not open to
// all. Credentials leave the request, so that nobody after this sees them.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	var failed error
	token := bearer(r)
	for _, req := range a.requests {
		resp, ok, err := req.AuthenticateRequest(r)
		if ok {
			a.strip(r)
			return authenticated(resp.User), nil
		}
		if err != nil {
			failed = err
		}
	}
	if token != "" {
		resp, ok, err := a.AuthenticateToken(r.Context(), token)
		if ok {
			a.strip(r)
			return authenticated(resp.User), nil
		}
		return nil, refuse(err)
	}
	if failed == nil && (a.anybody || a.anonymous[r.URL.Path]) {
		a.strip(r)
		return anonymous, nil
	}
	return nil, refuse(failed)
}

var anonymous = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}

// strip removes the user's credentials from r, a front proxy's headers too: nobody
// after this may believe them.
func (a *Authenticator) strip(r *http.Request) {
	delete(r.Header, "Authorization")
	if a.proxy != nil && a.proxy.custom {
		a.proxy.strip(r.Header)
	}
	for key := range r.Header {
		if strings.HasPrefix(key, "X-Remote-") && (key == "X-Remote-User" || key == "X-Remote-Uid" || key == "X-Remote-Group" || strings.HasPrefix(key, "X-Remote-Extra-")) {
			delete(r.Header, key)
		}
	}
}

// ReviewError is what a TokenReview says of err: upstream asks its own token
// first, which the one in question never is.
func ReviewError(err error) string {
	return utilerrors.NewAggregate([]error{errBadToken, err}).Error()
}

// AuthenticateToken tries the token authenticators, as TokenReview does.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var failed []error
	for _, t := range a.tokens {
		resp, ok, err := t.AuthenticateToken(ctx, token)
		if ok {
			return resp, true, nil
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 {
		return nil, false, errBadToken
	}
	return nil, false, utilerrors.NewAggregate(failed)
}

// Authenticated is u as a member of system:authenticated.
func Authenticated(u user.Info) user.Info { return authenticated(u) }

// authenticated adds the group system:authenticated.
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
