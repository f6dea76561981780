package oidc

import (
	"context"
	"encoding/base64"
	"net/http"
	"testing"
	"time"
)

// A token that nobody signed is never believed, whatever it looks like and
// whatever keys its issuer publishes.
func FuzzToken(f *testing.F) {
	enc := base64.RawURLEncoding.EncodeToString
	const claims = `{"iss":"https://i","aud":["a"],"exp":4e9,"nbf":1}`
	f.Add(enc([]byte(`{"alg":"RS256"}`))+"."+enc([]byte(claims))+"."+enc([]byte("x")), []byte(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB","alg":"RS256"}]}`))
	f.Add(enc([]byte(`{"alg":"none"}`))+"."+enc([]byte(claims))+".", []byte(`{"keys":[{"kty":"oct","k":"AQAB"}]}`))
	f.Add(enc([]byte(`{"alg":"ES256","kid":1}`))+"."+enc([]byte(`{"iss":[],"exp":"NaN"}`))+".AA", []byte(`{"keys":[null,{"kty":"EC","crv":"P-256","x":"","y":""}]}`))
	f.Add("..", []byte("[]"))
	v := &checks{algorithms: []string{"RS256", "ES256", "none", "HS256"}, audiences: []string{"a"}}
	f.Fuzz(func(t *testing.T, token string, published []byte) {
		issuer, _ := issuerOf(token)
		found, err := parseKeys(http.Header{}, published)
		if err != nil {
			found = &keys{}
		}
		found.until = time.Now().Add(time.Hour)
		k := &keySet{url: "http://127.0.0.1:1", client: &http.Client{Transport: absent{}}}
		k.fetched.Store(found)
		if c, err := v.verify(context.Background(), k, issuer, token); err == nil {
			t.Fatalf("%q makes %v", token, c)
		}
	})
}

type absent struct{}

func (absent) RoundTrip(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed }

// How long keys are kept is never negative.
func FuzzFreshness(f *testing.F) {
	f.Add("public, max-age=60")
	f.Add(`max-age="99999999999999999999", no-store`)
	f.Add("max-age=9223372036854775807")
	f.Fuzz(func(t *testing.T, control string) {
		if d := freshness(control); d < 0 {
			t.Fatalf("%q is %s", control, d)
		}
	})
}
