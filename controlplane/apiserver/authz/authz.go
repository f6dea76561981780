// Package authz authorises requests: one file per authoriser. It reads the
// RBAC objects, Pods and Nodes in the cache, the files that configure it, and
// asks webhooks; it writes nothing. Deny is the default.
package authz

import (
	"context"
	"fmt"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
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
	// FieldSelector and LabelSelector are the raw selectors of a list, watch or
	// deletecollection.
	FieldSelector, LabelSelector string
}

// Denied says in upstream's words that the action is not allowed.
func (a *Attributes) Denied(reason string) string {
	text := neutral.Replace(a.denied())
	if reason != "" {
		return text + ": " + reason
	}
	return text
}

// neutral takes from a text what a browser could take for HTML.
var neutral = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

func (a *Attributes) denied() string {
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
	return b.String()
}

// An Authorizer allows an action, denies it whatever others say, or has no
// allowOrNoOpinion. reason explains either; err is what went wrong on the way.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (d authorizer.Decision, reason string, err error)
}

// Allows asks z a question whose answer is yes or no.
func Allows(ctx context.Context, z Authorizer, a *Attributes) (ok bool, reason string) {
	d, reason, err := z.Authorize(ctx, a)
	switch {
	case d == authorizer.DecisionAllow:
		return true, reason
	case err != nil && reason != "":
		return false, fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		return false, err.Error()
	}
	return false, reason
}

// Chain is authorisers in their order: the first that has an opinion decides.
type Chain []Authorizer

// Authorize asks each in turn. The group system:masters may do everything, as
// upstream's privileged group.
func (c Chain) Authorize(ctx context.Context, a *Attributes) (authorizer.Decision, string, error) {
	for _, g := range a.User.GetGroups() {
		if g == user.SystemPrivilegedGroup {
			return authorizer.DecisionAllow, "", nil
		}
	}
	var reasons []string
	var errs []error
	for _, z := range c {
		d, reason, err := z.Authorize(ctx, a)
		if d != authorizer.DecisionNoOpinion {
			return d, reason, err
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

// allowOrNoOpinion is the decision of an authoriser that never denies.
func allowOrNoOpinion(allowed bool, reason string) (authorizer.Decision, string, error) {
	if allowed {
		return authorizer.DecisionAllow, reason, nil
	}
	return authorizer.DecisionNoOpinion, reason, nil
}
