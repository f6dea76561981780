package authn

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/watchcache"
)

// bearer is the request's token: from the Authorization header or, since
// browsers cannot set that one on WebSockets, from a subprotocol.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	const prefix = "base64url.bearer.authorization.k8s.io."
	var token64 string
	var rest []string
	for _, line := range r.Header[textproto.CanonicalMIMEHeaderKey("Sec-WebSocket-Protocol")] {
		for p := range strings.SplitSeq(line, ",") {
			p = strings.TrimSpace(p)
			if t, ok := strings.CutPrefix(p, prefix); ok {
				token64 = t
				continue
			}
			rest = append(rest, p)
		}
	}
	if token64 == "" || len(rest) == 0 {
		return ""
	}
	b, err := base64.RawURLEncoding.DecodeString(token64)
	if err != nil {
		return ""
	}
	r.Header.Set("Sec-WebSocket-Protocol", strings.Join(rest, ","))
	return string(b)
}

// static believes tokens given at start.
type static map[string]user.Info

func (s static) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	for t, u := range s {
		if subtle.ConstantTimeCompare([]byte(t), []byte(token)) == 1 {
			return &authenticator.Response{User: u}, true, nil
		}
	}
	return nil, false, nil
}

// bootstrap believes the tokens that new nodes join with: Secrets in
// kube-system of type bootstrap.kubernetes.io/token.
type bootstrap struct{ cache *watchcache.Cache }

func (b *bootstrap) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	id, secret, ok := strings.Cut(token, ".")
	if !ok || len(id) != 6 || len(secret) != 16 || strings.ContainsAny(id+secret, "/.") {
		return nil, false, nil
	}
	s, ok := watchcache.Read[*corev1.Secret](b.cache.Resource(corev1.SchemeGroupVersion.WithResource("secrets")), "kube-system/bootstrap-token-"+id)
	if !ok || s.DeletionTimestamp != nil || s.Type != corev1.SecretTypeBootstrapToken || string(s.Data["token-id"]) != id {
		return nil, false, nil
	}
	if subtle.ConstantTimeCompare(s.Data["token-secret"], []byte(secret)) != 1 {
		return nil, false, nil
	}
	if expires := string(s.Data["expiration"]); expires != "" {
		t, err := time.Parse(time.RFC3339, expires)
		if err != nil || !time.Now().Before(t) {
			return nil, false, nil
		}
	}
	if string(s.Data["usage-bootstrap-authentication"]) != "true" {
		return nil, false, nil
	}
	groups := []string{"system:bootstrappers"}
	for g := range strings.SplitSeq(string(s.Data["auth-extra-groups"]), ",") {
		if g == "" {
			continue
		}
		if !strings.HasPrefix(g, "system:bootstrappers:") {
			return nil, false, fmt.Errorf("bootstrap token %s: group %q is not below system:bootstrappers:", id, g)
		}
		groups = append(groups, g)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "system:bootstrap:" + id, Groups: groups}}, true, nil
}
