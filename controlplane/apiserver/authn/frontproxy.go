package authn

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// The headers in which a front proxy names the user.
const (
	UserHeader  = "X-Remote-User"
	UIDHeader   = "X-Remote-Uid"
	GroupHeader = "X-Remote-Group"
	ExtraPrefix = "X-Remote-Extra-"
)

// FrontProxy says whose word about users is believed.
type FrontProxy struct {
	// CA signs the certificates of front proxies. It must sign no others.
	CA *x509.CertPool
	// Names are their common names; none is any.
	Names []string
	// Headers name the user. Default: the four above.
	Headers *ProxyHeaders

	custom bool // there are other headers than those above
}

// ProxyHeaders are those in which front proxies name the user, in the order
// they count. A kind that has none is not read.
type ProxyHeaders struct{ User, UID, Group, ExtraPrefix []string }

// StandardHeaders are those that API servers use among each other.
func StandardHeaders() *ProxyHeaders {
	return &ProxyHeaders{User: []string{UserHeader}, UID: []string{UIDHeader}, Group: []string{GroupHeader}, ExtraPrefix: []string{ExtraPrefix}}
}

func (p *FrontProxy) withDefaults() *FrontProxy {
	if p == nil {
		return nil
	}
	own := *p
	if own.custom = own.Headers != nil; !own.custom {
		own.Headers = StandardHeaders()
	}
	return &own
}

func (p *FrontProxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	name := first(r.Header, p.Headers.User)
	if name == "" {
		return nil, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	opts := x509.VerifyOptions{Roots: p.CA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, Intermediates: x509.NewCertPool()}
	for _, cert := range r.TLS.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return nil, false, nil // an ordinary client, whose headers mean nothing
	}
	if len(p.Names) > 0 && !slices.Contains(p.Names, leaf.Subject.CommonName) {
		return nil, false, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", leaf.Subject.CommonName)
	}
	u := &user.DefaultInfo{Name: name, UID: first(r.Header, p.Headers.UID)}
	for _, h := range p.Headers.Group {
		for _, g := range r.Header.Values(h) {
			if g != "" {
				u.Groups = append(u.Groups, g)
			}
		}
	}
	for _, prefix := range p.Headers.ExtraPrefix {
		for key, values := range r.Header {
			if !foldPrefix(key, prefix) {
				continue
			}
			extra := strings.ToLower(key[len(prefix):])
			if plain, err := url.PathUnescape(extra); err == nil {
				extra = plain
			}
			if u.Extra == nil {
				u.Extra = map[string][]string{}
			}
			u.Extra[extra] = append(u.Extra[extra], values...)
		}
	}
	return &authenticator.Response{User: u}, true, nil
}

// first is the value of the first of the headers that has one.
func first(h http.Header, names []string) string {
	for _, n := range names {
		if v := h.Get(n); v != "" {
			return v
		}
	}
	return ""
}

func foldPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// strip takes the headers from h.
func (p *FrontProxy) strip(h http.Header) {
	for _, names := range [][]string{p.Headers.User, p.Headers.UID, p.Headers.Group} {
		for _, n := range names {
			h.Del(n)
		}
	}
	for _, prefix := range p.Headers.ExtraPrefix {
		for key := range h {
			if foldPrefix(key, prefix) {
				delete(h, key)
			}
		}
	}
}
