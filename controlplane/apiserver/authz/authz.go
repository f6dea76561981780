// Package authz says who may do what: one file per authoriser. It reads the
// RBAC objects, Pods and Nodes in the cache, and writes nothing. Deny is the
// default.
package authz

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// Attributes are one action of one user.
type Attributes struct {
	User        user.Info
	Verb        string
	Namespace   string
	Group       string
	Version     string
	Resource    string
	Subresource string
	Name        string
	// Path is asked for instead when IsResource is false.
	IsResource bool
	Path       string
	// FieldSelector is the raw selector of a list or watch.
	FieldSelector string
}

// An Authorizer allows an action or has no opinion. reason explains either.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (allowed bool, reason string)
}

// Chain allows what any of its authorisers allows.
type Chain []Authorizer

// Authorize asks each in turn. The group system:masters may do everything, as
// upstream's privileged group.
func (c Chain) Authorize(ctx context.Context, a *Attributes) (bool, string) {
	for _, g := range a.User.GetGroups() {
		if g == user.SystemPrivilegedGroup {
			return true, ""
		}
	}
	var reasons []string
	for _, z := range c {
		ok, reason := z.Authorize(ctx, a)
		if ok {
			return true, reason
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return false, strings.Join(reasons, "\n")
}
