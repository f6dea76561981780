// Package delegation asks the API server who sends a request and what that user may
// do, as components do that serve requests of their own. It reads requests, and
// creates TokenReviews and SubjectAccessReviews.
package delegation

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A Delegator decides about requests. The zero value lets nobody in.
type Delegator struct {
	// Authentication and Authorization ask the API server; nil: tokens do not count,
	// nothing is allowed.
	Authentication, Authorization kubernetes.Interface
	// ClientCA authenticates client certificates; nil: none count.
	ClientCA func() *x509.CertPool
	// Proxy is the front proxy that names its users in headers; nil: there is none.
	Proxy func() *FrontProxy
	// TokenTTL, AllowTTL and DenyTTL are how long answers are remembered. Default 2
	// minutes, 5 minutes and 30 seconds.
	TokenTTL, AllowTTL, DenyTTL time.Duration

	tokens cache[reviewed]
	grants cache[bool]
}

// A FrontProxy is an authenticating proxy: who has a certificate of its authority, and
// one of its names, says in headers for which user it asks.
type FrontProxy struct {
	CA                      *x509.CertPool
	Names                   []string // allowed common names; none: all
	User, UID, Group, Extra []string // headers; of Extra their prefixes
}

type reviewed struct {
	authenticationv1.UserInfo
	ok bool
}

// Authenticate gives the user of a request: of a front proxy's headers, a client
// certificate, or a token, the first of them that there is.
func (d *Delegator) Authenticate(r *http.Request) (u authenticationv1.UserInfo, ok bool, err error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if u, ok := d.proxied(r); ok {
			return u, true, nil
		}
		if leaf := verified(r.TLS.PeerCertificates, pool(d.ClientCA)); leaf != nil {
			groups := append([]string{"system:authenticated"}, leaf.Subject.Organization...)
			return authenticationv1.UserInfo{Username: leaf.Subject.CommonName, Groups: groups}, leaf.Subject.CommonName != "", nil
		}
	}
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "bearer") || token == "" || d.Authentication == nil {
		return u, false, nil
	}
	sum := sha256.Sum256([]byte(token))
	got, err := d.tokens.get(r.Context(), string(sum[:]), func(ctx context.Context) (reviewed, time.Duration, error) {
		res, err := d.Authentication.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return reviewed{}, 0, err
		}
		return reviewed{res.Status.User, res.Status.Authenticated}, or(d.TokenTTL, 2*time.Minute), nil
	})
	return got.UserInfo, got.ok, err
}

func pool(of func() *x509.CertPool) *x509.CertPool {
	if of == nil {
		return nil
	}
	return of()
}

// verified is the certificate of a client whose chain ends in ca, or nil.
func verified(chain []*x509.Certificate, ca *x509.CertPool) *x509.Certificate {
	if ca == nil {
		return nil
	}
	opts := x509.VerifyOptions{Roots: ca, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return nil
	}
	return chain[0]
}

// proxied is the user that a front proxy asks for.
func (d *Delegator) proxied(r *http.Request) (u authenticationv1.UserInfo, ok bool) {
	if d.Proxy == nil {
		return u, false
	}
	p := d.Proxy()
	if p == nil {
		return u, false
	}
	leaf := verified(r.TLS.PeerCertificates, p.CA)
	if leaf == nil || len(p.Names) > 0 && !slices.Contains(p.Names, leaf.Subject.CommonName) {
		return u, false
	}
	if u.Username = first(r.Header, p.User); u.Username == "" {
		return u, false
	}
	u.UID = first(r.Header, p.UID)
	for _, h := range p.Group {
		u.Groups = append(u.Groups, r.Header.Values(h)...)
	}
	if !slices.Contains(u.Groups, "system:authenticated") && u.Username != "system:anonymous" {
		u.Groups = append(u.Groups, "system:authenticated")
	}
	for name, values := range r.Header {
		for _, prefix := range p.Extra {
			if len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
				if u.Extra == nil {
					u.Extra = map[string]authenticationv1.ExtraValue{}
				}
				key := strings.ToLower(name[len(prefix):])
				u.Extra[key] = append(u.Extra[key], values...)
			}
		}
	}
	return u, true
}

func first(h http.Header, names []string) string {
	for _, name := range names {
		if v := h.Get(name); v != "" {
			return v
		}
	}
	return ""
}

// Authorize asks whether the user may do what one of the attributes says, either of a
// resource or of a path.
func (d *Delegator) Authorize(ctx context.Context, u authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (bool, error) {
	if d.Authorization == nil {
		return false, nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: u.Username, Groups: u.Groups, UID: u.UID, ResourceAttributes: resource, NonResourceAttributes: path}
	if len(u.Extra) > 0 {
		spec.Extra = map[string]authorizationv1.ExtraValue{}
		for k, v := range u.Extra {
			spec.Extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	key, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(key)
	return d.grants.get(ctx, string(sum[:]), func(ctx context.Context) (bool, time.Duration, error) {
		res, err := d.Authorization.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return false, 0, err
		}
		if res.Status.Allowed {
			return true, or(d.AllowTTL, 5*time.Minute), nil
		}
		return false, or(d.DenyTTL, 30*time.Second), nil
	})
}

func or(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return d
}
