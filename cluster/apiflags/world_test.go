package apiflags

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// elsewhere is what an API server asks: an issuer of tokens, and webhooks.
type elsewhere struct {
	t      *testing.T
	dir    string
	issuer *httptest.Server
	hook   *httptest.Server
	rsa    *rsa.PrivateKey
	ec     *ecdsa.PrivateKey
	ca     *ecdsa.PrivateKey
	caCert *x509.Certificate
	asked  atomic.Int32           // reviews
	last   atomic.Pointer[string] // what was asked last of a webhook
	warned string
}

// rsaKey is made once: it takes longer than all the rest.
var rsaKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func newElsewhere(t *testing.T) *elsewhere {
	t.Helper()
	e := &elsewhere{t: t, dir: t.TempDir()}
	var err error
	e.rsa, err = rsaKey()
	e.must(err)
	e.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.must(err)
	e.ca, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.must(err)
	e.issuer = httptest.NewTLSServer(http.HandlerFunc(e.serveIssuer))
	e.hook = httptest.NewTLSServer(http.HandlerFunc(e.serveHook))
	t.Cleanup(e.issuer.Close)
	t.Cleanup(e.hook.Close)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxies"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, e.ca.Public(), e.ca)
	e.must(err)
	e.caCert, err = x509.ParseCertificate(der)
	e.must(err)
	e.file("proxy-ca.pem", pemOf("CERTIFICATE", der))
	e.file("issuer-ca.pem", pemOf("CERTIFICATE", e.issuer.Certificate().Raw))
	for name, path := range map[string]string{"hook": "/", "down": "/down", "authn": "/authn"} {
		e.file(name+".kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
			`"users":[{"name":"u","user":{}}],"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}]}`, e.hook.URL+path, e.path("hook-ca.pem")))
	}
	e.file("hook-ca.pem", pemOf("CERTIFICATE", e.hook.Certificate().Raw))
	return e
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func (e *elsewhere) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *elsewhere) path(name string) string { return filepath.Join(e.dir, name) }

// file writes a file whose text may name where things are.
func (e *elsewhere) file(name, text string) {
	e.t.Helper()
	e.must(os.WriteFile(e.path(name), []byte(e.fill(text)), 0o600))
}

// fill puts in where things are.
func (e *elsewhere) fill(text string) string {
	r := strings.NewReplacer("ISSUER", e.issuer.URL, "DIR", e.dir, "HOOK", e.hook.URL)
	if strings.Contains(text, "CAPEM") {
		text = strings.ReplaceAll(text, "CAPEM", string(jsonOf(pemOf("CERTIFICATE", e.issuer.Certificate().Raw))))
	}
	return r.Replace(text)
}

// blank undoes fill, so that answers may be compared.
func (e *elsewhere) blank(text string) string {
	return strings.NewReplacer(e.issuer.URL, "ISSUER", e.dir, "DIR", e.hook.URL, "HOOK", strings.TrimPrefix(e.hook.URL, "https://"), "HOOK").Replace(text)
}

func jsonOf(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (e *elsewhere) serveIssuer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration", "/elsewhere/discovery":
		_, _ = w.Write(jsonOf(map[string]any{"issuer": e.issuer.URL, "jwks_uri": e.issuer.URL + "/keys"}))
	case "/keys":
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(jsonOf(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
			{Key: e.rsa.Public(), KeyID: "rsa", Algorithm: "RS256", Use: "sig"}, {Key: e.ec.Public(), KeyID: "ec", Algorithm: "ES256", Use: "sig"},
			{Key: []byte("a shared secret of thirty-two by."), KeyID: "secret", Algorithm: "HS256"},
		}}))
	case "/groups":
		if r.Header.Get("Authorization") != "Bearer open" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(e.token(claims{"groups": []string{"far", "away"}})))
	default:
		http.NotFound(w, r)
	}
}

type claims map[string]any

// token is one of the issuer's, which says at least the usual.
func (e *elsewhere) token(c claims, change ...func(alg *jose.SignatureAlgorithm, key *jose.JSONWebKey)) string {
	alg, key := jose.RS256, jose.JSONWebKey{Key: e.rsa, KeyID: "rsa"}
	for _, change := range change {
		change(&alg, &key)
	}
	all := claims{"iss": e.issuer.URL, "aud": "knarr", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range c {
		if all[k] = v; v == nil {
			delete(all, k)
		}
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	e.must(err)
	jws, err := s.Sign([]byte(strings.ReplaceAll(string(jsonOf(all)), "GROUPS", e.issuer.URL+"/groups")))
	e.must(err)
	text, err := jws.CompactSerialize()
	e.must(err)
	return text
}

func (e *elsewhere) serveHook(w http.ResponseWriter, r *http.Request) {
	e.asked.Add(1)
	w.Header().Set("Content-Type", "application/json")
	var kind struct{ APIVersion, Kind string }
	var body json.RawMessage
	if json.NewDecoder(r.Body).Decode(&body) != nil || json.Unmarshal(body, &kind) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var what struct{ Spec json.RawMessage }
	e.must(json.Unmarshal(body, &what))
	review := kind.APIVersion + " " + string(what.Spec)
	e.last.Store(&review)
	switch {
	case r.URL.Path == "/down":
		w.WriteHeader(http.StatusForbidden)
	case kind.Kind == "TokenReview":
		var review authenticationv1.TokenReview
		e.must(json.Unmarshal(body, &review))
		_, _ = w.Write(jsonOf(map[string]any{"apiVersion": kind.APIVersion, "kind": kind.Kind, "status": tokenStatus(review.Spec.Token)}))
	default:
		var review authorizationv1.SubjectAccessReview
		e.must(json.Unmarshal(body, &review))
		_, _ = w.Write(jsonOf(map[string]any{"apiVersion": kind.APIVersion, "kind": kind.Kind, "status": accessStatus(review.Spec.User)}))
	}
}

func tokenStatus(token string) map[string]any {
	switch token {
	case "hooked":
		return map[string]any{"authenticated": true, "user": map[string]any{"username": "hook", "uid": "7", "groups": []string{"hooks"}, "extra": map[string]any{"k": []string{"v"}}}}
	case "other-audience":
		return map[string]any{"authenticated": true, "audiences": []string{"other"}, "user": map[string]any{"username": "hook"}}
	case "faulty":
		return map[string]any{"authenticated": false, "error": "the token is faulty"}
	}
	return map[string]any{"authenticated": false}
}

func accessStatus(user string) map[string]any {
	switch user {
	case "allowed":
		return map[string]any{"allowed": true, "reason": "the hook allows"}
	case "denied":
		return map[string]any{"allowed": false, "denied": true, "reason": "the hook denies"}
	case "both":
		return map[string]any{"allowed": true, "denied": true, "reason": "who knows"}
	}
	return map[string]any{"allowed": false, "reason": "the hook has no opinion"}
}

// cert is a client certificate for cn that the proxies' CA signed, or itself.
func (e *elsewhere) cert(cn string, signed bool) (der []byte, key crypto.Signer) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	parent, by := e.caCert, e.ca
	if !signed {
		parent, by = template, k
	}
	der, err = x509.CreateCertificate(rand.Reader, template, parent, k.Public(), by)
	e.must(err)
	return der, k
}
