package oidc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"knarr/controlplane/apiserver/structured"
)

// fake is an issuer whose keys change.
type fake struct {
	t       *testing.T
	srv     *httptest.Server
	fresh   string // Cache-Control of the keys
	fetched atomic.Int32

	mu   sync.Mutex
	keys map[string]*ecdsa.PrivateKey
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, keys: map[string]*ecdsa.PrivateKey{}}
	f.rotate("one")
	f.srv = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/keys" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, f.srv.URL, f.srv.URL+"/keys")
			return
		}
		f.fetched.Add(1)
		w.Header().Set("Cache-Control", f.fresh)
		f.mu.Lock()
		defer f.mu.Unlock()
		set := jose.JSONWebKeySet{}
		for id, k := range f.keys {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public(), KeyID: id})
		}
		if err := json.NewEncoder(w).Encode(set); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(f.srv.Close)
	return f
}

// rotate leaves the issuer with one new key.
func (f *fake) rotate(id string) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.keys)
	f.keys[id] = k
}

func (f *fake) token(id string) string {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: f.keys[id], KeyID: id}}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	jws, err := s.Sign(fmt.Appendf(nil, `{"iss":%q,"aud":"a","sub":"ann","exp":%d}`, f.srv.URL, time.Now().Add(time.Hour).Unix()))
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := jws.CompactSerialize()
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

const head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n"

// entry is the issuer in a file.
func (f *fake) entry(prefix string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.srv.Certificate().Raw})
	text, err := json.Marshal(string(ca))
	if err != nil {
		f.t.Fatal(err)
	}
	return fmt.Sprintf("{issuer: {url: %q, audiences: [a], certificateAuthority: %s}, claimMappings: {username: {claim: sub, prefix: %q}}}", f.srv.URL, text, prefix)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, file string) *Issuers {
	t.Helper()
	config, err := structured.ReadAuthentication(file)
	if err != nil {
		t.Fatal(err)
	}
	i, err := New(config, []string{"https://ours"})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// found waits until the issuers have answered.
func (i *Issuers) found(t *testing.T) {
	t.Helper()
	for _, one := range i.current.Load().issuers {
		select {
		case <-one.known:
		case <-t.Context().Done():
			t.Fatal(i.Healthy())
		}
	}
}

func who(t *testing.T, i *Issuers, token string) string {
	t.Helper()
	resp, ok, err := i.AuthenticateToken(t.Context(), token)
	if !ok {
		return fmt.Sprint(err)
	}
	return resp.User.GetName()
}

func TestRotation(t *testing.T) {
	f := newFake(t)
	f.fresh = "no-cache"
	file := filepath.Join(t.TempDir(), "f")
	write(t, file, head+"jwt: ["+f.entry("x:")+"]\n")
	i := open(t, file)
	if got := who(t, i, f.token("one")); got != "oidc: authenticator not initialized" {
		t.Errorf("before it was asked: %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	i.found(t)
	old := f.token("one")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := who(t, i, old); got != "x:ann" {
				t.Error(got)
			}
		})
	}
	all.Wait()
	f.rotate("two")
	f.fetched.Store(0)
	if got := who(t, i, old); got != "x:ann" || f.fetched.Load() != 0 {
		t.Errorf("%s: an old key is as good as the issuer said, %d fetched", got, f.fetched.Load())
	}
	f.fresh = "public, max-age=3600"
	if got := who(t, i, f.token("two")); got != "x:ann" {
		t.Errorf("the new key: %s", got)
	}
	if got := who(t, i, old); !strings.Contains(got, "failed to verify id token signature") {
		t.Errorf("the old key: %s", got)
	}
	f.rotate("three")
	if got := who(t, i, f.token("three")); !strings.Contains(got, "failed to verify id token signature") || f.fetched.Load() != 1 {
		t.Errorf("%s, %d fetched: fresh keys are not fetched again", got, f.fetched.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReload(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "f")
	write(t, file, head+"anonymous: {enabled: false}\njwt: ["+f.entry("x:")+"]\n")
	i := open(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	defer i.wg.Wait()
	defer cancel()
	i.discover(ctx, i.current.Load())
	i.found(t)
	before := i.current.Load()
	for name, text := range map[string]string{
		"nothing":            "",
		"rubbish":            "{",
		"no username":        head + "anonymous: {enabled: false}\njwt: [{issuer: {url: 'https://x', audiences: [a]}}]\n",
		"other strangers":    head + "anonymous: {enabled: true}\njwt: [" + f.entry("y:") + "]\n",
		"our own issuer":     head + "anonymous: {enabled: false}\njwt: [{issuer: {url: 'https://ours', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n",
		"strangers unspoken": head + "jwt: [" + f.entry("y:") + "]\n",
	} {
		write(t, file, text)
		if again := i.reload(ctx); again != 0 || i.current.Load() != before {
			t.Errorf("%s: taken over, %v", name, again)
		}
	}
	if got := who(t, i, f.token("one")); got != "x:ann" {
		t.Error(got)
	}
	write(t, file, head+"anonymous: {enabled: false}\njwt: ["+f.entry("y:")+"]\n")
	if i.reload(ctx); i.current.Load() == before {
		t.Fatal("not taken over")
	}
	if got := who(t, i, f.token("one")); got != "y:ann" {
		t.Error(got)
	}
	write(t, file, head+"anonymous: {enabled: false}\n")
	if i.reload(ctx); who(t, i, f.token("one")) != "<nil>" {
		t.Error("an issuer that was taken out is believed")
	}
}

// An issuer that does not answer is given a minute and then, with the
// configuration before it in place, asked again.
func TestReloadOfSilentIssuer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	synctest.Test(t, func(t *testing.T) {
		write(t, file, head+"jwt: []\n")
		i := open(t, file)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer i.wg.Wait()
		defer cancel()
		before, began := i.current.Load(), time.Now()
		write(t, file, head+"jwt: [{issuer: {url: 'https://127.0.0.1:1', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n")
		for range 2 { // the same content again
			if again := i.reload(ctx); again != time.Minute || i.current.Load() != before {
				t.Errorf("taken over, %v", again)
			}
		}
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("after %v", took)
		}
	})
}

func TestFreshness(t *testing.T) {
	for control, want := range map[string]time.Duration{
		"": 0, "max-age=60": time.Minute, "public, Max-Age=\"60\"": time.Minute, "max-age=60, no-store": 0, "max-age=-1": 0, "max-age=x": 0,
	} {
		if got := freshness(control); got != want {
			t.Errorf("%q: %v", control, got)
		}
	}
}

func TestKeys(t *testing.T) {
	k, err := parseKeys(http.Header{}, []byte(`{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"a"},{"kty":"odd"},7,
		{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0","kid":"b"}]}`))
	if err != nil || len(k.list) != 1 || k.list[0].KeyID != "b" {
		t.Errorf("%+v %v", k, err)
	}
	if _, err := parseKeys(http.Header{"Content-Type": {"text/html"}}, []byte("<html>")); err == nil || !strings.Contains(err.Error(), `expected Content-Type = application/json, got "text/html"`) {
		t.Error(err)
	}
}
