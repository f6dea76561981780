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
}

func (p *FrontProxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get(UserHeader)
	if name == "" || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
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
	u := &user.DefaultInfo{Name: name, UID: r.Header.Get(UIDHeader)}
	for _, g := range r.Header.Values(GroupHeader) {
		if g != "" {
			u.Groups = append(u.Groups, g)
		}
	}
	for key, values := range r.Header {
		if extra, ok := strings.CutPrefix(key, ExtraPrefix); ok {
			extra = strings.ToLower(extra)
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
