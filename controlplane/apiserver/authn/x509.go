package authn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// clientCerts believes certificates signed by the client CA: the common name
// is the user, the organisations are the groups.
type clientCerts struct {
	roots *x509.CertPool

	mu    sync.Mutex
	known map[[32]byte]verified
}

// verified remembers one certificate, since verifying costs more than all the
// rest of a small request.
type verified struct {
	resp  *authenticator.Response
	until time.Time
}

const (
	knownCerts    = 4096
	certRemembers = time.Minute
)

func newX509(roots *x509.CertPool) *clientCerts {
	return &clientCerts{roots: roots, known: map[[32]byte]verified{}}
}

func (c *clientCerts) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	sum := sha256.Sum256(leaf.Raw)
	now := time.Now()
	c.mu.Lock()
	v, ok := c.known[sum]
	c.mu.Unlock()
	if ok && now.Before(v.until) {
		return v.resp, true, nil
	}
	opts := x509.VerifyOptions{Roots: c.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, Intermediates: x509.NewCertPool()}
	for _, cert := range r.TLS.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return nil, false, fmt.Errorf("verify client certificate of %q: %w", leaf.Subject.CommonName, err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, false, nil
	}
	v = verified{until: now.Add(certRemembers), resp: &authenticator.Response{User: authenticated(&user.DefaultInfo{
		Name: leaf.Subject.CommonName, UID: uidOf(leaf), Groups: leaf.Subject.Organization,
		Extra: map[string][]string{user.CredentialIDKey: {credentialID + hex.EncodeToString(sum[:])}},
	})}}
	if leaf.NotAfter.Before(v.until) {
		v.until = leaf.NotAfter
	}
	c.mu.Lock()
	if len(c.known) >= knownCerts {
		clear(c.known)
	}
	c.known[sum] = v
	c.mu.Unlock()
	return v.resp, true, nil
}

// credentialID begins the name of the credential of who came by a certificate.
const credentialID = "X509SHA256="

// ByCertificate says whether it is a certificate that this user is known by.
func ByCertificate(who user.Info) bool {
	id := who.GetExtra()[user.CredentialIDKey]
	return len(id) == 1 && strings.HasPrefix(id[0], credentialID)
}

// uidAttribute is where a subject may carry the user's UID.
var uidAttribute = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

func uidOf(cert *x509.Certificate) string {
	for _, n := range cert.Subject.Names {
		if s, ok := n.Value.(string); ok && n.Type.Equal(uidAttribute) {
			return s
		}
	}
	return ""
}
