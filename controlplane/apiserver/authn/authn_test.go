package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t testing.TB) *ca {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &ca{cert, key}
}

func (a *ca) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *ca) issue(t testing.TB, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "bob", Organization: []string{"g1", "g2"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	change(c)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func requestWith(path string, certs ...*x509.Certificate) *http.Request {
	r, err := http.NewRequestWithContext(context.Background(), "GET", "https://x"+path, nil)
	if err != nil {
		panic(err)
	}
	if len(certs) > 0 {
		r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	}
	return r
}

func TestX509(t *testing.T) {
	ours, theirs := newCA(t), newCA(t)
	a := New(Config{ClientCA: ours.pool()})
	for name, c := range map[string]struct {
		cert *x509.Certificate
		want string
	}{
		"good":       {ours.issue(t, func(*x509.Certificate) {}), "bob g1,g2,system:authenticated"},
		"expired":    {ours.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), ""},
		"not yet":    {ours.issue(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), ""},
		"no name":    {ours.issue(t, func(c *x509.Certificate) { c.Subject = pkix.Name{Organization: []string{"system:masters"}} }), ""},
		"a server's": {ours.issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), ""},
		"another CA": {theirs.issue(t, func(*x509.Certificate) {}), ""},
		"the CA":     {theirs.cert, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time it is remembered
				who, err := a.Authenticate(requestWith("/api", c.cert))
				got := ""
				if err == nil {
					got = who.GetName() + " " + strings.Join(who.GetGroups(), ",")
				} else if !errors.Is(err, ErrUnauthorized) {
					t.Error(err)
				}
				if got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
	// A bad certificate is no anonymous user, even where those may go.
	if _, err := a.Authenticate(requestWith("/livez", theirs.issue(t, func(*x509.Certificate) {}))); err == nil {
		t.Error("a stranger's certificate on /livez is let in")
	}
}

func TestUIDFromCertificate(t *testing.T) {
	ours := newCA(t)
	cert := ours.issue(t, func(c *x509.Certificate) {
		c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: uidAttribute, Value: "u-1"}}
	})
	who, err := New(Config{ClientCA: ours.pool()}).Authenticate(requestWith("/api", cert))
	if err != nil || who.GetUID() != "u-1" {
		t.Errorf("%v %v", who, err)
	}
}

func TestAnonymous(t *testing.T) {
	a := New(Config{Static: map[string]user.Info{"secret": &user.DefaultInfo{Name: "bob"}}, AnonymousPaths: []string{"/livez", "/readyz", "/healthz"}})
	for path, open := range map[string]bool{"/livez": true, "/readyz": true, "/healthz": true, "/livez/etcd": false, "/api": false, "/metrics": false, "/": false, "/version": false, "//livez": false} {
		who, err := a.Authenticate(requestWith(path))
		if (err == nil) != open {
			t.Errorf("%s: %v %v", path, who, err)
		}
		if open && (who.GetName() != user.Anonymous || strings.Join(who.GetGroups(), ",") != user.AllUnauthenticated) {
			t.Errorf("%+v", who)
		}
	}
	r := requestWith("/livez")
	r.Header.Set("Authorization", "Bearer wrong")
	if _, err := a.Authenticate(r); !errors.Is(err, ErrUnauthorized) {
		t.Error("a bad token became anonymous")
	}
}

// Credentials never reach a handler.
func TestCredentialsLeaveTheRequest(t *testing.T) {
	ours := newCA(t)
	a := New(Config{ClientCA: ours.pool(), Static: map[string]user.Info{"secret": &user.DefaultInfo{Name: "bob"}}})
	byToken, byCert := requestWith("/api"), requestWith("/api", ours.issue(t, func(*x509.Certificate) {}))
	for _, r := range []*http.Request{byToken, byCert} {
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("X-Remote-User", "root")
		r.Header.Set("X-Remote-Group", "system:masters")
		r.Header.Set("X-Remote-Extra-A", "b")
		r.Header.Set("Sec-WebSocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io."+base64.RawURLEncoding.EncodeToString([]byte("secret")))
		who, err := a.Authenticate(r)
		if err != nil || who.GetName() != "bob" {
			t.Fatalf("%v %v", who, err)
		}
		if len(r.Header) != 1 || r.Header.Get("Sec-WebSocket-Protocol") != "v5.channel.k8s.io" {
			t.Errorf("left: %v", r.Header)
		}
	}
}

func TestBearer(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	for _, c := range []struct{ auth, protocol, want string }{
		{"Bearer a", "", "a"},
		{"bearer a", "", "a"},
		{" Bearer a ", "", "a"},
		{"Bearer a b", "", "a"},
		{"Bearer  a", "", ""},
		{"Bearer", "", ""},
		{"Basic a", "", ""},
		{"", "x, " + protocolPrefix + b64([]byte("t")), "t"},
		{"", protocolPrefix + b64([]byte("t")), ""},
		{"", "x," + protocolPrefix + b64([]byte("t")) + "," + protocolPrefix + b64([]byte("t")), ""},
		{"", "x," + protocolPrefix + "!", ""},
		{"", "x," + protocolPrefix + b64([]byte{0xff}), ""},
	} {
		r := requestWith("/")
		if c.auth != "" {
			r.Header.Set("Authorization", c.auth)
		}
		if c.protocol != "" {
			r.Header.Set("Sec-WebSocket-Protocol", c.protocol)
		}
		if got := bearer(r); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func FuzzBearer(f *testing.F) {
	f.Add("Bearer a", "")
	f.Add("", "x, "+protocolPrefix+"dA")
	f.Add("bearer  ", protocolPrefix+",,")
	f.Fuzz(func(t *testing.T, auth, protocol string) {
		r := requestWith("/")
		r.Header["Authorization"] = []string{auth}
		if protocol != "" {
			r.Header["Sec-Websocket-Protocol"] = []string{protocol}
		}
		token := bearer(r)
		if auth != "" && token != "" && protocol == "" && (!strings.Contains(auth, token) || strings.Contains(token, " ")) {
			t.Errorf("%q gives %q", auth, token)
		}
		if strings.Contains(r.Header.Get("Sec-WebSocket-Protocol"), protocolPrefix) && strings.Contains(protocol, ",") {
			for p := range strings.SplitSeq(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
				if strings.HasPrefix(strings.TrimSpace(p), protocolPrefix) {
					t.Errorf("a token is left in %q", r.Header.Get("Sec-WebSocket-Protocol"))
				}
			}
		}
	})
}

func TestBootstrapGroups(t *testing.T) {
	got, err := bootstrapGroups("system:bootstrappers:b,system:bootstrappers:a,system:bootstrappers:b")
	if err != nil || strings.Join(got, " ") != "system:bootstrappers system:bootstrappers:a system:bootstrappers:b" {
		t.Error(got, err)
	}
	for _, bad := range []string{"system:masters", "system:bootstrappers:", "system:bootstrappers:A", "system:bootstrappers:a\n"} {
		if _, err := bootstrapGroups(bad); err == nil {
			t.Errorf("%q is let through", bad)
		}
	}
}
