package authn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"testing"
)

// A token that this server did not sign is never believed.
func FuzzServiceAccountToken(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	tokens, err := NewServiceAccountTokens(TokenConfig{Key: key, Issuers: []string{"https://i"}}, nil)
	if err != nil {
		f.Fatal(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	claims := enc([]byte(`{"iss":"https://i","aud":"https://i","sub":"system:serviceaccount:a:b","exp":4e9,"kubernetes.io":{"namespace":"a","serviceaccount":{"name":"b"}}}`))
	for _, head := range []string{`{"alg":"ES256","kid":""}`, `{"alg":"none"}`, `{"alg":"HS256"}`, `{"alg":"ES256","jwk":{}}`, `{}`} {
		f.Add(enc([]byte(head)) + "." + claims + "." + enc(make([]byte, 64)))
	}
	f.Add(enc([]byte(`{"alg":"ES256"}`)) + "." + enc([]byte(`{"iss":"kubernetes/serviceaccount"}`)) + "." + enc(make([]byte, 64)))
	f.Add(`{"payload":"","signatures":[]}`)
	f.Fuzz(func(t *testing.T, token string) {
		tokens.ours(token)
		if v, err := tokens.verify(token); err == nil {
			t.Fatalf("%q makes %+v", token, v)
		}
	})
}
