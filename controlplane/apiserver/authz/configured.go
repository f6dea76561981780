package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/structured"
	"knarr/internal/follow"
)

// A Configured is the authorisers that a configuration names; with a file they
// follow it.
type Configured struct {
	own    map[apiserver.AuthorizerType]Authorizer // in this process
	config *structured.Authorization
	chain  atomic.Pointer[Chain]
}

// NewConfigured puts together what config names; nil is Node and RBAC.
func NewConfigured(config *structured.Authorization, node *Node, rbac *RBAC) (*Configured, error) {
	c := &Configured{config: config, own: map[apiserver.AuthorizerType]Authorizer{}}
	if config == nil {
		c.chain.Store(&Chain{node, rbac})
		return c, nil
	}
	for _, z := range config.Authorizers {
		switch z.Type {
		case structured.Node:
			c.own[z.Type] = node
		case structured.RBAC:
			c.own[z.Type] = rbac
		case structured.ABAC:
			policies, err := ReadABAC(config.Policies)
			if err != nil {
				return nil, err
			}
			c.own[z.Type] = policies
		}
	}
	return c, c.take(config)
}

// take puts the authorisers of config in place of those before.
func (c *Configured) take(config *structured.Authorization) error {
	if len(config.Authorizers) == 0 {
		return errors.New("at least one authorization mode must be passed")
	}
	var chain Chain
	for _, z := range config.Authorizers {
		switch z.Type {
		case structured.AlwaysAllow:
			chain = append(chain, always(authorizer.DecisionAllow))
		case structured.AlwaysDeny:
			chain = append(chain, always(authorizer.DecisionNoOpinion))
		case structured.Webhook:
			w, err := newWebhook(z.Webhook)
			if err != nil {
				return err
			}
			chain = append(chain, w)
		default:
			own, ok := c.own[z.Type]
			if !ok {
				return fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", z.Type)
			}
			chain = append(chain, own)
		}
	}
	c.chain.Store(&chain)
	return nil
}

// Authorize asks the authorisers of now.
func (c *Configured) Authorize(ctx context.Context, a *Attributes) (authorizer.Decision, string, error) {
	return c.chain.Load().Authorize(ctx, a)
}

// Rules are those of the authorisers of now.
func (c *Configured) Rules(who user.Info, namespace string) Rules {
	return c.chain.Load().Rules(who, namespace)
}

// Run follows the configuration's file until ctx ends. A file that says nothing
// sensible leaves the authorisers as they are.
func (c *Configured) Run(ctx context.Context) error {
	if c.config == nil || c.config.File == "" {
		return nil
	}
	return follow.File(ctx, c.config.File, func() time.Duration {
		if err := c.reload(ctx); err != nil {
			slog.ErrorContext(ctx, "reloading authorization config", "err", err)
		}
		return 0
	})
}

// reload takes the file over if it has changed and makes sense.
func (c *Configured) reload(ctx context.Context) error {
	now, err := c.config.Again()
	if err != nil || now == nil {
		return err
	}
	before := c.config
	if c.config = now; reflect.DeepEqual(before.AuthorizationConfiguration, now.AuthorizationConfiguration) {
		return nil
	}
	if err := c.take(now); err != nil {
		return err
	}
	slog.InfoContext(ctx, "reloaded authz config", "file", now.File)
	return nil
}

// always is the same decision for everybody: to allow, or no opinion.
type always authorizer.Decision

func (d always) Authorize(context.Context, *Attributes) (authorizer.Decision, string, error) {
	if d := authorizer.Decision(d); d == authorizer.DecisionAllow {
		return d, "", nil
	}
	return authorizer.DecisionNoOpinion, "Everything is forbidden.", nil
}

func (d always) Rules(user.Info, string) (r Rules) {
	if authorizer.Decision(d) == authorizer.DecisionAllow {
		r.Resource = []authorizationv1.ResourceRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}
		r.NonResource = []authorizationv1.NonResourceRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}}
	}
	return r
}
