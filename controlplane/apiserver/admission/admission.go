// Package admission looks at every write before it is stored: one file per
// plugin and the ordered table of them. It reads the cache, changes incoming
// objects, and refuses.
package admission

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/watchcache"
)

// A Plugin is one rule; it is a Mutator, a Validator, or both.
type Plugin interface{ Name() string }

// A Mutator may change the incoming object, or refuse it.
type Mutator interface {
	Plugin
	Admit(ctx context.Context, a *endpoints.Attributes) error
}

// A Validator sees the final object and may refuse it.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *endpoints.Attributes) error
}

// Config is what plugins read.
type Config struct {
	Cache      *watchcache.Cache
	RBAC       *authz.RBAC
	Authorizer authz.Authorizer
}

// Plugins are the plugins in upstream's order.
func Plugins(c Config) []Plugin {
	return []Plugin{
		&namespaceLifecycle{c.Cache},
		&serviceAccount{c.Cache},
		&nodeRestriction{c.Cache, c.Authorizer},
		taintNodesByCondition{},
		&priority{c.Cache},
		defaultTolerationSeconds{},
		&runtimeClass{c.Cache},
		&createAuthorization{c.Authorizer},
		&rbacEscalation{c.RBAC, c.Authorizer},
	}
}

// A Chain runs plugins in order.
type Chain struct {
	mutators   []Mutator
	validators []Validator
}

// NewChain sorts plugins by what they do.
func NewChain(plugins []Plugin) *Chain {
	c := &Chain{}
	for _, p := range plugins {
		if m, ok := p.(Mutator); ok {
			c.mutators = append(c.mutators, m)
		}
		if v, ok := p.(Validator); ok {
			c.validators = append(c.validators, v)
		}
	}
	return c
}

// Admit lets every mutator see the object.
func (c *Chain) Admit(ctx context.Context, a *endpoints.Attributes) error {
	for _, m := range c.mutators {
		if err := m.Admit(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// Validate lets every validator see the object.
func (c *Chain) Validate(ctx context.Context, a *endpoints.Attributes) error {
	for _, v := range c.validators {
		if err := v.Validate(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// forbidden is the 403 of a plugin. It names the object even before a generated
// name has been made.
func forbidden(a *endpoints.Attributes, err error) error {
	return apierrors.NewForbidden(a.Resource.GroupResource(), nameOf(a), err)
}

func nameOf(a *endpoints.Attributes) string {
	if a.Name != "" {
		return a.Name
	}
	if o, ok := a.Object.(metav1.Object); ok {
		if name := o.GetName(); name != "" {
			return name
		}
		if prefix := o.GetGenerateName(); prefix != "" {
			return prefix
		}
	}
	return "Unknown"
}

// is says that a concerns that core resource itself, or the subresource given.
func is(a *endpoints.Attributes, resource, sub string) bool {
	return a.Resource.Group == "" && a.Resource.Resource == resource && a.Subresource == sub
}
