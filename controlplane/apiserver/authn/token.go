package authn

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/watchcache"
)

// bearer is the request's token: from the Authorization header or, since
// browsers cannot set that one on WebSockets, from a subprotocol, which leaves
// the request.
func bearer(r *http.Request) string {
	token := ""
	if auth := r.Header["Authorization"]; len(auth) > 0 {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(auth[0]), " ")
		if strings.EqualFold(scheme, "bearer") {
			token, _, _ = strings.Cut(rest, " ")
		}
	}
	if protocols := r.Header["Sec-Websocket-Protocol"]; len(protocols) > 0 {
		if t := protocolBearer(r, protocols); token == "" {
			token = t
		}
	}
	return token
}

const protocolPrefix = "base64url.bearer.authorization.k8s.io."

// protocolBearer takes the token out of the subprotocols; one that is not a
// token, or stands alone, or is one of several is none.
func protocolBearer(r *http.Request, lines []string) string {
	var found []string
	var rest []string
	for _, line := range lines {
		for p := range strings.SplitSeq(line, ",") {
			p = strings.TrimSpace(p)
			if t, ok := strings.CutPrefix(p, protocolPrefix); ok {
				found = append(found, t)
				continue
			}
			rest = append(rest, p)
		}
	}
	if len(found) == 0 {
		return ""
	}
	r.Header.Set("Sec-WebSocket-Protocol", strings.Join(rest, ","))
	if len(found) != 1 || len(rest) == 0 {
		return ""
	}
	b, err := base64.RawURLEncoding.DecodeString(found[0])
	if err != nil || !utf8.Valid(b) {
		return ""
	}
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
	if !ok || len(id) != 6 || len(secret) != 16 || !lowerAlphanumeric(id) || !lowerAlphanumeric(secret) {
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
	groups, err := bootstrapGroups(string(s.Data["auth-extra-groups"]))
	if err != nil {
		return nil, false, fmt.Errorf("bootstrap token %s: %w", id, err)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "system:bootstrap:" + id, Groups: groups}}, true, nil
}

// extraGroup is the form of the groups that a bootstrap token may add.
var extraGroup = regexp.MustCompile(`\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`)

func bootstrapGroups(extra string) ([]string, error) {
	groups := []string{"system:bootstrappers"}
	for g := range strings.SplitSeq(extra, ",") {
		if g == "" {
			continue
		}
		if !extraGroup.MatchString(g) {
			return nil, fmt.Errorf("group %q is not below system:bootstrappers:", g)
		}
		groups = append(groups, g)
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

func lowerAlphanumeric(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
