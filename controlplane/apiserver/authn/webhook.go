package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	authenticationv1 "k8s.io/api/authentication/v1"
	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/reviewer"
)

// webhook asks a server elsewhere whose a token is.
type webhook struct {
	client    *reviewer.Client
	older     bool
	audiences authenticator.Audiences // of the API server itself
}

// NewWebhook asks the webhook of a kubeconfig by TokenReviews of version.
func NewWebhook(kubeconfig, version string, audiences []string) (authenticator.Token, error) {
	w := &webhook{audiences: audiences}
	gv := authenticationv1.SchemeGroupVersion
	switch version {
	case "v1":
	case "v1beta1":
		gv, w.older = authenticationv1beta1.SchemeGroupVersion, true
	default:
		return nil, fmt.Errorf("unsupported authentication webhook version %q, supported versions are %q, %q", version, "v1", "v1beta1")
	}
	var err error
	w.client, err = reviewer.New(kubeconfig, gv, 0)
	return w, err
}

// AuthenticateToken asks for the audiences that the caller wants, by default
// the API server's own. An answer that names none is for those.
func (w *webhook) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = w.audiences
	}
	status, err := w.ask(ctx, authenticationv1.TokenReviewSpec{Token: token, Audiences: wanted})
	if err != nil {
		slog.ErrorContext(ctx, "authentication webhook", "err", err)
		return nil, false, err
	}
	got := w.audiences
	if len(status.Audiences) > 0 {
		got = status.Audiences
	}
	if got = wanted.Intersect(got); len(got) == 0 {
		return nil, false, nil
	}
	if !status.Authenticated {
		if status.Error != "" {
			err = errors.New(status.Error)
		}
		return nil, false, err
	}
	u := &user.DefaultInfo{Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups}
	for k, v := range status.User.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[k] = v
	}
	return &authenticator.Response{User: u, Audiences: got}, true, nil
}

func (w *webhook) ask(ctx context.Context, spec authenticationv1.TokenReviewSpec) (s authenticationv1.TokenReviewStatus, err error) {
	if !w.older {
		answer := &authenticationv1.TokenReview{}
		err = w.client.Ask(ctx, &authenticationv1.TokenReview{Spec: spec}, answer)
		return answer.Status, err
	}
	answer := &authenticationv1beta1.TokenReview{}
	if err = w.client.Ask(ctx, &authenticationv1beta1.TokenReview{Spec: authenticationv1beta1.TokenReviewSpec(spec)}, answer); err != nil {
		return s, err
	}
	u := answer.Status.User
	s = authenticationv1.TokenReviewStatus{
		Authenticated: answer.Status.Authenticated, Audiences: answer.Status.Audiences, Error: answer.Status.Error,
		User: authenticationv1.UserInfo{Username: u.Username, UID: u.UID, Groups: u.Groups},
	}
	for k, v := range u.Extra {
		if s.User.Extra == nil {
			s.User.Extra = map[string]authenticationv1.ExtraValue{}
		}
		s.User.Extra[k] = authenticationv1.ExtraValue(v)
	}
	return s, nil
}
