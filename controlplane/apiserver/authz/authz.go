// Package authz says who may do what: one file per authoriser. It reads the
// RBAC objects, Pods and Nodes in the cache, and writes nothing. Deny is the
// default.
package authz

import (
	"context"
	"fmt"
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

// Denied says in upstream's words that the action is not allowed.
func (a *Attributes) Denied(reason string) string {
	var b strings.Builder
	if a.IsResource {
		resource := a.Resource
		if a.Subresource != "" {
			resource += "/" + a.Subresource
		}
		fmt.Fprintf(&b, "User %q cannot %s resource %q in API group %q", a.User.GetName(), a.Verb, resource, a.Group)
		if a.Namespace != "" {
			fmt.Fprintf(&b, " in the namespace %q", a.Namespace)
		} else {
			b.WriteString(" at the cluster scope")
		}
	} else {
		fmt.Fprintf(&b, "forbidden: User %q cannot %s path %q", a.User.GetName(), a.Verb, a.Path)
	}
	if reason != "" {
		b.WriteString(": " + reason)
	}
	return b.String()
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
