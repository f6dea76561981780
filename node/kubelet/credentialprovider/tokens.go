package credentialprovider

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxTokenAge is how long a token is used at most, whatever its life, as upstream's.
const maxTokenAge = 24 * time.Hour

// tokens are those of service accounts, each bound to a pod and for one audience.
type tokens struct {
	audience string
	request  func(ctx context.Context, namespace, name string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)

	mu     sync.Mutex
	cached cache
}

type token struct {
	secret string
	renew  time.Time
}

// of is a token of the pod's service account. It is requested anew when four fifths of
// its life, or a day, have passed; should that fail, it serves to its end.
func (t *tokens) of(ctx context.Context, r Request, account types.UID) (string, error) {
	now := time.Now()
	k := key(r.Namespace, r.Account, string(account), r.Pod, string(r.PodUID))
	t.mu.Lock()
	v, ok := t.cached.get(k, now)
	t.mu.Unlock()
	if ok && now.Before(v.(token).renew) {
		return v.(token).secret, nil
	}
	got, err := t.request(ctx, r.Namespace, r.Account, &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account}, // not that of another one of the same name
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{t.audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: r.Pod, UID: r.PodUID},
		},
	})
	if err != nil && ok {
		slog.Warn("renew a token for a credential provider", "serviceAccount", r.Namespace+"/"+r.Account, "err", err)
		return v.(token).secret, nil
	}
	if err != nil {
		return "", fmt.Errorf("failed to fetch token: %w", err)
	}
	expires := got.Status.ExpirationTimestamp.Time
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cached.put(k, token{got.Status.Token, now.Add(min(expires.Sub(now)*4/5, maxTokenAge))}, expires, now)
	return got.Status.Token, nil
}
