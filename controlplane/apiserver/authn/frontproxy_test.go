package authn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// signed is a client certificate of its own authority.
func signed(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// Only a front proxy's headers name the user.
func TestFrontProxy(t *testing.T) {
	proxy, other, client := signed(t, "front-proxy-client"), signed(t, "other"), signed(t, "bob")
	proxies, clients := x509.NewCertPool(), x509.NewCertPool()
	proxies.AddCert(proxy)
	proxies.AddCert(other)
	clients.AddCert(client)
	a := New(Config{ClientCA: clients, FrontProxy: &FrontProxy{CA: proxies, Names: []string{"front-proxy-client"}}})
	for name, c := range map[string]struct {
		cert *x509.Certificate
		want user.Info
	}{
		"proxy":       {proxy, &user.DefaultInfo{Name: "alice", UID: "u", Groups: []string{"g", "h", user.AllAuthenticated}, Extra: map[string][]string{"a/b": {"c"}}}},
		"other name":  {other, nil},
		"client":      {client, &user.DefaultInfo{Name: "bob"}},
		"nobody":      {nil, nil},
		"self-signed": {signed(t, "front-proxy-client"), nil},
	} {
		r := httptest.NewRequest("GET", "/api/v1/pods", nil)
		if c.cert != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		}
		r.Header.Set("X-Remote-User", "alice")
		r.Header.Set("X-Remote-Uid", "u")
		r.Header["X-Remote-Group"] = []string{"g", "h"}
		r.Header.Set("X-Remote-Extra-a%2fb", "c")
		got, err := a.Authenticate(r)
		switch {
		case c.want == nil:
			if err == nil {
				t.Errorf("%s: became %v", name, got)
			}
		case err != nil || got.GetName() != c.want.GetName():
			t.Errorf("%s: %v, %v", name, got, err)
		case c.want.GetUID() != "" && !reflect.DeepEqual(got, c.want):
			t.Errorf("%s: got %+v\nwant %+v", name, got, c.want)
		}
		if r.Header.Get("X-Remote-User") != "" && err == nil {
			t.Errorf("%s: the headers go on to others", name)
		}
	}
}
