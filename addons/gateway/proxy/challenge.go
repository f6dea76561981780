package proxy

import (
	"net/http"
	"strconv"
	"strings"
)

// challengePath is where an authority asks whether a host is served here, as RFC 8555 has it.
const challengePath = "/.well-known/acme-challenge/"

// maxToken bounds the token of a challenge.
const maxToken = 128

// challenge answers an authority that validates the host: the answer to a token is the
// token and the thumbprint of the account's key. Nothing of it is secret.
func (x *exchange) challenge() (answered bool) {
	l := x.site.Listener
	if l.Challenge == "" {
		return false
	}
	token, ok := strings.CutPrefix(x.request.Path, challengePath)
	if !ok || x.r.Method != http.MethodGet && x.r.Method != http.MethodHead || !validToken(token) {
		return false
	}
	if of, _ := x.site.challenged.Find(x.request.Host); !of {
		return false
	}
	text := token + "." + l.Challenge
	h := x.w.Header()
	h["Content-Type"], h["X-Content-Type-Options"] = []string{"application/octet-stream"}, []string{"nosniff"}
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	x.record.Status, x.record.Rule = http.StatusOK, "acme-challenge"
	x.w.WriteHeader(http.StatusOK)
	if x.r.Method == http.MethodGet {
		n, _ := x.w.Write([]byte(text))
		x.record.Sent = int64(n)
	}
	return true
}

// validToken says whether a token has the characters of base64url alone.
func validToken(token string) bool {
	if token == "" || len(token) > maxToken {
		return false
	}
	for i := 0; i < len(token); i++ {
		if b := token[i]; (b < 'A' || b > 'Z') && (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' && b != '_' {
			return false
		}
	}
	return true
}
