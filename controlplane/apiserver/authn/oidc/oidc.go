// Package oidc authenticates the ID tokens of OpenID Connect issuers that an
// AuthenticationConfiguration names. It reads that file and the issuers'
// discovery documents and keys, and writes nothing.
package oidc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"knarr/controlplane/apiserver/structured"
	"knarr/internal/follow"
	"knarr/internal/run"
)

// Issuers are those whose tokens are believed, and which they are may change.
type Issuers struct {
	disallowed []string // issuers of service-account tokens
	config     *structured.Authentication
	current    atomic.Pointer[generation]
	wg         run.Group
}

// generation is the issuers of one configuration.
type generation struct {
	issuers []*issuer
	cancel  context.CancelFunc // of what is still looking for them
}

const (
	// retry is how often an issuer is asked who it is until it answers.
	retry = 10 * time.Second
	// discoveryTimeout is how long a new configuration's issuers may take to answer.
	discoveryTimeout = time.Minute
)

// New believes the issuers of config. It asks them nothing before Run.
func New(config *structured.Authentication, disallowed []string) (*Issuers, error) {
	i := &Issuers{disallowed: disallowed, config: config}
	g, err := i.compile(config)
	if err != nil {
		return nil, err
	}
	i.current.Store(g)
	return i, nil
}

func (i *Issuers) compile(config *structured.Authentication) (*generation, error) {
	g := &generation{cancel: func() {}}
	for n := range config.JWT {
		one, err := newIssuer(&config.JWT[n], config.Algorithms, i.disallowed)
		if err != nil {
			return nil, err
		}
		g.issuers = append(g.issuers, one)
	}
	return g, nil
}

// Run asks the issuers who they are, and follows the configuration's file,
// until ctx ends.
func (i *Issuers) Run(ctx context.Context) error {
	defer i.wg.Wait()
	i.discover(ctx, i.current.Load())
	defer func() { i.current.Load().cancel() }()
	if i.config.File == "" {
		<-ctx.Done()
		return nil
	}
	return follow.File(ctx, i.config.File, func() time.Duration { return i.reload(ctx) })
}

// reload takes the file over if it has changed and makes sense, and says when
// to look at it again all the same.
func (i *Issuers) reload(ctx context.Context) (again time.Duration) {
	now, err := i.config.Again(i.disallowed)
	switch {
	case err != nil:
		slog.ErrorContext(ctx, "authentication configuration not taken over", "file", i.config.File, "err", err)
		return 0
	case now == nil:
		return 0
	}
	if err := i.take(ctx, now); err != nil {
		slog.ErrorContext(ctx, "failed to update authentication config", "file", i.config.File, "err", err)
		i.config.Forget()
		return discoveryTimeout
	}
	slog.InfoContext(ctx, "reloaded authentication config", "file", i.config.File)
	return 0
}

// discover asks the issuers of g who they are, in the background.
func (i *Issuers) discover(ctx context.Context, g *generation) {
	ctx, g.cancel = context.WithCancel(ctx)
	for _, one := range g.issuers {
		i.wg.Loop(ctx, "OIDC discovery", one.discover)
	}
}

// take puts config in place once all of its issuers have answered.
func (i *Issuers) take(ctx context.Context, config *structured.Authentication) error {
	g, err := i.compile(config)
	if err != nil {
		return err
	}
	i.discover(ctx, g)
	limit, done := context.WithTimeout(ctx, discoveryTimeout)
	defer done()
	var errs []error
	for _, one := range g.issuers {
		select {
		case <-one.known:
		case <-limit.Done():
			errs = append(errs, one.unhealthy())
		}
	}
	if len(errs) > 0 {
		g.cancel()
		return utilerrors.NewAggregate(errs)
	}
	i.current.Swap(g).cancel()
	i.config = config
	return nil
}

// AuthenticateToken asks the issuer that the token names; no other.
func (i *Issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	g := i.current.Load()
	if len(g.issuers) == 0 {
		return nil, false, nil
	}
	name, ok := issuerOf(token)
	if !ok {
		return nil, false, nil
	}
	for _, one := range g.issuers {
		if one.config.Issuer.URL == name {
			u, err := one.authenticate(ctx, token)
			if err != nil {
				return nil, false, err
			}
			return &authenticator.Response{User: u}, true, nil
		}
	}
	return nil, false, nil
}

// Healthy says what is wrong with the issuers; nil is nothing.
func (i *Issuers) Healthy() error {
	var errs []error
	for _, one := range i.current.Load().issuers {
		select {
		case <-one.known:
		default:
			errs = append(errs, one.unhealthy())
		}
	}
	return utilerrors.NewAggregate(errs)
}

func (o *issuer) unhealthy() error {
	err := errors.New("oidc: authenticator for issuer \"" + o.config.Issuer.URL + "\" is not initialized")
	if last := o.last.Load(); last != nil {
		err = *last
	}
	return fmt.Errorf("oidc: authenticator for issuer %q is not healthy: %w", o.config.Issuer.URL, err)
}
