package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"knarr/internal/run"
)

// maxDocument bounds what an issuer may answer.
const maxDocument = 4 << 20

// fetch gets a document from an issuer.
func fetch(ctx context.Context, client *http.Client, url string) (body []byte, h http.Header, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return nil, nil, fmt.Errorf("unable to read response body: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, resp.Header, nil
}

// unmarshal blames the content type of what is no JSON.
func unmarshal(h http.Header, body []byte, into any) error {
	err := json.Unmarshal(body, into)
	if err == nil {
		return nil
	}
	ct := h.Get("Content-Type")
	if media, _, bad := mime.ParseMediaType(ct); bad == nil && media == "application/json" {
		return fmt.Errorf("got Content-Type = application/json, but could not unmarshal as JSON: %w", err)
	}
	return fmt.Errorf("expected Content-Type = application/json, got %q: %w", ct, err)
}

// provide asks issuer who it is, at document or where issuers tell that, and
// returns its keys.
func provide(ctx context.Context, client *http.Client, issuer, document string) (*keySet, error) {
	if document == "" {
		document = strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"
	}
	body, h, err := fetch(ctx, client, document)
	if err != nil {
		return nil, err
	}
	var d struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := unmarshal(h, body, &d); err != nil {
		return nil, fmt.Errorf("oidc: failed to decode provider discovery object: %w", err)
	}
	switch {
	case d.Issuer != issuer:
		return nil, fmt.Errorf("oidc: issuer did not match the issuer returned by provider, expected %q got %q", issuer, d.Issuer)
	case d.Keys == "":
		return nil, errors.New("provider did not return JWKS URL")
	}
	return &keySet{url: d.Keys, client: client}, nil
}

// A keySet is an issuer's public keys, fetched when a token names one that is
// not known.
type keySet struct {
	url     string
	client  *http.Client
	fetched atomic.Pointer[keys]
	one     singleflight.Group
}

type keys struct {
	list  []jose.JSONWebKey
	until time.Time
}

const (
	// early is how long before their end keys are fetched anew.
	early = 30 * time.Second
	// keysTimeout bounds a fetch that several requests may wait for.
	keysTimeout = 30 * time.Second
)

var errSignature = errors.New("failed to verify id token signature")

// verify returns what jws signs, when one of the keys signed it.
func (s *keySet) verify(ctx context.Context, jws *jose.JSONWebSignature) ([]byte, error) {
	have := s.fetched.Load()
	if payload, ok := have.open(jws); ok {
		return payload, nil // old keys serve while the issuer cannot be reached
	}
	if have != nil && time.Now().Add(early).Before(have.until) {
		return nil, errSignature
	}
	have, err := s.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetching keys %w", err)
	}
	if payload, ok := have.open(jws); ok {
		return payload, nil
	}
	return nil, errSignature
}

func (k *keys) open(jws *jose.JSONWebSignature) ([]byte, bool) {
	if k == nil {
		return nil, false
	}
	id := jws.Signatures[0].Header.KeyID
	for i := range k.list {
		if key := &k.list[i]; id == "" || key.KeyID == id {
			if payload, err := jws.Verify(key); err == nil {
				return payload, true
			}
		}
	}
	return nil, false
}

// fetch gets the keys; requests that want them at the same time share one
// fetch, which the end of one of them does not end.
func (s *keySet) fetch(ctx context.Context) (*keys, error) {
	get := func() (any, error) {
		limit, done := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
		defer done()
		body, h, err := fetch(limit, s.client, s.url)
		if err != nil {
			return nil, fmt.Errorf("oidc: get keys failed: %w", err)
		}
		k, err := parseKeys(h, body)
		if err == nil {
			s.fetched.Store(k)
		}
		return k, err
	}
	got := s.one.DoChan("", func() (k any, err error) {
		// The library ends the process when this panics.
		err = run.Catch("keys of an issuer", func() error { k, err = get(); return err })
		return k, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-got:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*keys), nil
	}
}

// parseKeys reads public keys; one of a kind that is not known, or that is
// secret, is as if it were not there.
func parseKeys(h http.Header, body []byte) (*keys, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := unmarshal(h, body, &set); err != nil {
		return nil, fmt.Errorf("oidc: failed to decode keys: %w", err)
	}
	k := &keys{until: time.Now().Add(freshness(h.Get("Cache-Control")))}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) == nil && key.Valid() && key.IsPublic() {
			k.list = append(k.list, key)
		}
	}
	return k, nil
}

// freshness is how long an answer may be kept, by its Cache-Control.
func freshness(control string) (d time.Duration) {
	for part := range strings.SplitSeq(strings.ToLower(control), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "no-store", "no-cache":
			return 0
		case "max-age":
			if n, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil && n > 0 {
				d = time.Duration(min(n, math.MaxInt32)) * time.Second
			}
		}
	}
	return d
}
