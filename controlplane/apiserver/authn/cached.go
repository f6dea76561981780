package authn

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"knarr/internal/run"
)

// cached remembers for a while what next decided about a token, a bounded number of
// them, and asks once for requests that come at the same time. Errors are not
// remembered.
type cached struct {
	next      authenticator.Token
	good, bad time.Duration
	answers   *cache.LRUExpireCache
	asking    singleflight.Group
}

const (
	answersKept = 8192
	// lookupTimeout bounds a question that several requests may wait for.
	lookupTimeout = 40 * time.Second
)

// WithCache remembers the good answers of next for good, the bad for bad; 0 is
// not at all.
func WithCache(next authenticator.Token, good, bad time.Duration) authenticator.Token {
	return &cached{next: next, good: good, bad: bad, answers: cache.NewLRUExpireCache(answersKept)}
}

type tokenAnswer struct {
	resp *authenticator.Response
	ok   bool
}

func (c *cached) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	key := c.key(ctx, token)
	if have, ok := c.answers.Get(key); ok {
		a := have.(tokenAnswer)
		return a.resp, a.ok, nil
	}
	got := c.asking.DoChan(key, func() (any, error) {
		limit, done := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
		defer done()
		var a tokenAnswer
		// The library ends the process when this panics, and anybody sends tokens.
		err := run.Catch("ask about a token", func() (err error) {
			a.resp, a.ok, err = c.next.AuthenticateToken(limit, token)
			return err
		})
		ttl := c.bad
		if a.ok {
			ttl = c.good
		}
		if err == nil && ttl > 0 {
			c.answers.Add(key, a, ttl)
		}
		return a, err
	})
	select {
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case r := <-got:
		a, _ := r.Val.(tokenAnswer)
		return a.resp, a.ok, r.Err
	}
}

// key tells tokens, and for whom they are asked about, apart without keeping
// them.
func (*cached) key(ctx context.Context, token string) string {
	h := sha256.New()
	h.Write([]byte(token))
	sum := string(h.Sum(nil))
	if wanted, ok := authenticator.AudiencesFrom(ctx); ok {
		wanted = slices.Clone(wanted)
		slices.Sort(wanted)
		return sum + strings.Join(wanted, "\x00")
	}
	return sum
}
