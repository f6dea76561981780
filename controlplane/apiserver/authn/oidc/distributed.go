package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// others are issuers to whom a verified token sends for its groups (OpenID
// Connect Core 1.0, section 5.6.2).
type others struct {
	claim  string
	client *http.Client
	checks checks

	mu sync.Mutex
	by map[string]*keySet
}

// othersKept bounds how many of them are remembered.
const othersKept = 64

type source struct {
	URL   string `json:"endpoint,omitempty"`
	Token string `json:"access_token,omitempty"`
}

// expand adds the claim to c when c says that it is elsewhere.
func (o *others) expand(ctx context.Context, c claims) error {
	raw, ok := c["_claim_names"]
	if _, has := c[o.claim]; has || !ok {
		return nil
	}
	var names map[string]string
	if err := json.Unmarshal(raw, &names); err != nil {
		return fmt.Errorf("oidc: error parsing distributed claim names: %w", err)
	}
	if raw, ok = c["_claim_sources"]; !ok {
		return errors.New("oidc: no claim sources")
	}
	var sources map[string]source
	if err := json.Unmarshal(raw, &sources); err != nil {
		return fmt.Errorf("oidc: could not parse claim sources: %w", err)
	}
	name, ok := names[o.claim]
	if !ok {
		return nil
	}
	from, ok := sources[name]
	switch {
	case !ok:
		return fmt.Errorf("id token _claim_names contained a source %s missing in _claims_sources", name)
	case from.URL == "":
		return nil
	}
	value, err := o.resolve(ctx, from)
	if err == nil {
		c[o.claim] = value
	}
	return err
}

func (o *others) resolve(ctx context.Context, from source) (json.RawMessage, error) {
	token, err := o.fetch(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("while getting distributed claim %q: %w", o.claim, err)
	}
	issuer, ok := issuerOf(token)
	if !ok {
		return nil, fmt.Errorf("getting untrusted issuer from endpoint %v failed for claim %q: malformed token", from.URL, o.claim)
	}
	k, err := o.keys(ctx, issuer)
	if err != nil {
		return nil, fmt.Errorf("verifying untrusted issuer %v failed: %w", issuer, err)
	}
	c, err := o.checks.verify(ctx, k, issuer, token)
	if err != nil {
		return nil, fmt.Errorf("verify distributed claim token: %w", err)
	}
	value, ok := c[o.claim]
	if !ok {
		return nil, fmt.Errorf("jwt returned by distributed claim endpoint %q did not contain claim: %v", from.URL, o.claim)
	}
	return value, nil
}

// keys are those of an issuer, asked for once.
func (o *others) keys(ctx context.Context, issuer string) (*keySet, error) {
	o.mu.Lock()
	k := o.by[issuer]
	o.mu.Unlock()
	if k != nil {
		return k, nil
	}
	k, err := provide(ctx, o.client, issuer, "")
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.by) >= othersKept {
		clear(o.by)
	}
	o.by[issuer] = k
	return k, nil
}

func (o *others) fetch(ctx context.Context, from source) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from.URL, nil)
	if err != nil {
		return "", fmt.Errorf("while calling %v: %w", from.URL, err)
	}
	if from.Token != "" {
		r.Header.Set("Authorization", "Bearer "+from.Token)
	}
	resp, err := o.client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > http.StatusIMUsed {
		return "", fmt.Errorf("error while getting distributed claim JWT: %v", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return "", errors.New("could not decode distributed claim response")
	}
	return string(body), nil
}
