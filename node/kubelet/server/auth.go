package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Auth lets in who the API server says may come in.
type Auth struct {
	// Client asks the API server.
	Client kubernetes.Interface
	// Node is the name of the Node the permissions are about.
	Node string
	// CA authenticates client certificates; nil: none count.
	CA *x509.CertPool

	tokens cache[user]
	grants cache[grant]
}

type user struct {
	authenticationv1.UserInfo
	ok bool
}

type grant struct {
	ok     bool
	reason string
}

// How long answers are remembered.
const (
	tokenLife = 2 * time.Minute
	allowLife = 5 * time.Minute
	denyLife  = 30 * time.Second
	maxCached = 1024
)

func (a *Auth) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok, err := a.authenticate(r)
		if err != nil || !ok {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		attrs := attributes(r.Method, r.URL.Path)
		for _, at := range attrs {
			g, err := a.authorize(r.Context(), u, at)
			if err != nil {
				http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%s)", u.Username, at.verb, at.sub), http.StatusInternalServerError)
				return
			}
			if g.ok {
				next.ServeHTTP(w, r)
				return
			}
		}
		subs := make([]string, len(attrs))
		for i, at := range attrs {
			subs[i] = at.sub
		}
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.Username, attrs[0].verb, subs), http.StatusForbidden)
	})
}

// authenticate says who asks: a certificate first, then a token.
func (a *Auth) authenticate(r *http.Request) (authenticationv1.UserInfo, bool, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && a.CA != nil {
		opts := x509.VerifyOptions{Roots: a.CA, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		for _, c := range r.TLS.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
		leaf := r.TLS.PeerCertificates[0]
		if _, err := leaf.Verify(opts); err == nil {
			groups := append([]string{"system:authenticated"}, leaf.Subject.Organization...)
			return authenticationv1.UserInfo{Username: leaf.Subject.CommonName, Groups: groups}, leaf.Subject.CommonName != "", nil
		}
	}
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" {
		return authenticationv1.UserInfo{}, false, nil
	}
	sum := sha256.Sum256([]byte(token))
	u, err := a.tokens.get(string(sum[:]), func() (user, time.Duration, error) {
		res, err := a.Client.AuthenticationV1().TokenReviews().Create(r.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return user{}, 0, err
		}
		return user{res.Status.User, res.Status.Authenticated}, tokenLife, nil
	})
	return u.UserInfo, u.ok, err
}

type attribute struct{ verb, sub string }

func under(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

// attributes are the permissions any of which is enough for a request.
func attributes(method, path string) []attribute {
	verb := map[string]string{"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
	var subs []string
	switch {
	case under(path, "/pods"), under(path, "/runningpods"):
		subs = []string{"pods", "proxy"}
	case under(path, "/healthz"):
		subs = []string{"healthz", "proxy"}
	case under(path, "/configz"):
		subs = []string{"configz", "proxy"}
	case under(path, "/stats"):
		subs = []string{"stats"}
	case under(path, "/metrics"):
		subs = []string{"metrics"}
	case under(path, "/logs"):
		subs = []string{"log"}
	default:
		subs = []string{"proxy"}
	}
	out := make([]attribute, len(subs))
	for i, s := range subs {
		out[i] = attribute{verb, s}
	}
	return out
}

func (a *Auth) authorize(ctx context.Context, u authenticationv1.UserInfo, at attribute) (grant, error) {
	id, err := json.Marshal(u)
	if err != nil {
		return grant{}, err
	}
	return a.grants.get(string(id)+"\x00"+at.verb+"\x00"+at.sub, func() (grant, time.Duration, error) {
		spec := authorizationv1.SubjectAccessReviewSpec{
			User: u.Username, Groups: u.Groups, UID: u.UID,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: at.verb, Version: "v1", Resource: "nodes", Subresource: at.sub, Name: a.Node},
		}
		if len(u.Extra) > 0 {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
			for k, v := range u.Extra {
				spec.Extra[k] = authorizationv1.ExtraValue(v)
			}
		}
		res, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return grant{}, 0, err
		}
		life := denyLife
		if res.Status.Allowed {
			life = allowLife
		}
		return grant{res.Status.Allowed, res.Status.Reason}, life, nil
	})
}

// A cache remembers answers for a while, a bounded number of them.
type cache[T any] struct {
	mu  sync.Mutex
	all map[string]entry[T]
}

type entry[T any] struct {
	v     T
	until time.Time
}

func (c *cache[T]) get(key string, ask func() (T, time.Duration, error)) (T, error) {
	now := time.Now()
	c.mu.Lock()
	e, ok := c.all[key]
	c.mu.Unlock()
	if ok && now.Before(e.until) {
		return e.v, nil
	}
	v, life, err := ask()
	if err != nil {
		return v, errors.Join(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= maxCached {
		for k, e := range c.all {
			if now.After(e.until) {
				delete(c.all, k)
			}
		}
		if len(c.all) >= maxCached {
			clear(c.all)
		}
	}
	if c.all == nil {
		c.all = map[string]entry[T]{}
	}
	c.all[key] = entry[T]{v, now.Add(life)}
	return v, nil
}
