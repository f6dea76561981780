package authn

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// TestPanicOverToken: a token over which an authenticator panics fails its
// request, and ends nothing else.
func TestPanicOverToken(t *testing.T) {
	c := WithCache(authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) { panic("a trap") }), time.Minute, time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		if _, ok, err := c.AuthenticateToken(ctx, "t"); ok || err == nil || !strings.Contains(err.Error(), "panic: a trap") {
			t.Errorf("got %v, %v", ok, err)
		}
	}
}
