package oidc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// claims are what a token says.
type claims map[string]json.RawMessage

// checks are what a token must pass beside its signature.
type checks struct{ algorithms, audiences []string }

// leeway is how far an issuer's clock may be ahead.
const leeway = time.Minute

func prefixed(what string, err error) error { return fmt.Errorf("oidc: %s: %w", what, err) }

// issuerOf is the issuer that a token claims; it is not to be believed.
func issuerOf(token string) (string, bool) {
	parts := strings.SplitN(token, ".", 4)
	if len(parts) != 3 {
		return "", false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", false
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payload, &c) != nil {
		return "", false
	}
	if c.Issuer == "accounts.google.com" { // Google leaves the scheme out
		return "https://" + c.Issuer, true
	}
	return c.Issuer, true
}

// verify returns what a token says, when issuer signed it for one of the
// audiences and its time is now.
func (v *checks) verify(ctx context.Context, k *keySet, issuer, token string) (claims, error) {
	head, rest, _ := strings.Cut(token, ".")
	if strings.Count(rest, ".") != 1 {
		return nil, errors.New("oidc: malformed jwt")
	}
	alg, err := algorithmOf(head)
	if err != nil {
		return nil, fmt.Errorf("oidc: malformed jwt: %w", err)
	}
	if !slices.Contains(v.algorithms, alg) {
		return nil, fmt.Errorf("oidc: id token signed with unsupported algorithm, expected %q got %q", v.algorithms, alg)
	}
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(alg)})
	if err != nil {
		return nil, fmt.Errorf("oidc: malformed jwt: %w", err)
	}
	payload, err := k.verify(ctx, jws)
	if err != nil {
		return nil, fmt.Errorf("failed to verify signature: %w", err)
	}
	var known struct {
		Issuer    string   `json:"iss"`
		Audience  audience `json:"aud"`
		Expiry    moment   `json:"exp"`
		NotBefore *moment  `json:"nbf"`
	}
	if err := json.Unmarshal(payload, &known); err != nil {
		return nil, fmt.Errorf("oidc: failed to unmarshal claims: %w", err)
	}
	now := time.Now()
	switch {
	case known.Issuer != issuer && (issuer != "https://accounts.google.com" || known.Issuer != "accounts.google.com"):
		return nil, fmt.Errorf("oidc: id token issued by a different provider, expected %q got %q", issuer, known.Issuer)
	case len(v.audiences) == 1 && !slices.Contains(known.Audience, v.audiences[0]):
		return nil, fmt.Errorf("oidc: expected audience %q got %q", v.audiences[0], []string(known.Audience))
	case known.Expiry.Before(now):
		return nil, fmt.Errorf("oidc: token is expired (Token Expiry: %v)", known.Expiry.Time)
	case known.NotBefore != nil && now.Add(leeway).Before(known.NotBefore.Time):
		return nil, fmt.Errorf("oidc: current time %v before the nbf (not before) time: %v", now, known.NotBefore.Time)
	case !slices.ContainsFunc(v.audiences, func(a string) bool { return slices.Contains(known.Audience, a) }):
		return nil, fmt.Errorf("oidc: expected audience in %q got %q", slices.Sorted(slices.Values(v.audiences)), []string(known.Audience))
	}
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return nil, fmt.Errorf("oidc: failed to unmarshal claims: %w", err)
	}
	return c, nil
}

func algorithmOf(head string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return "", err
	}
	var h struct {
		Algorithm string `json:"alg"`
	}
	return h.Algorithm, json.Unmarshal(b, &h)
}

// audience is one or several.
type audience []string

func (a *audience) UnmarshalJSON(b []byte) error {
	var s oneOrMore
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*a = audience(s)
	return nil
}

// oneOrMore is a string, or a list of them.
type oneOrMore []string

func (s *oneOrMore) UnmarshalJSON(b []byte) error {
	var list []string
	if json.Unmarshal(b, &list) == nil {
		*s = list
		return nil
	}
	var one string
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*s = []string{one}
	return nil
}

// moment is seconds since 1970, which may have a fraction.
type moment struct{ time.Time }

func (m *moment) UnmarshalJSON(b []byte) error {
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	seconds, err := n.Int64()
	if err != nil {
		f, err := n.Float64()
		if err != nil {
			return err
		}
		if math.IsNaN(f) || math.Abs(f) > 1<<53 {
			return fmt.Errorf("%s is no time", n)
		}
		seconds = int64(f)
	}
	m.Time = time.Unix(seconds, 0)
	return nil
}
