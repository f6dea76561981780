package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/lru"

	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/request"
)

const impersonatePrefix = "Impersonate-"

// impersonates says cheaply, for nearly all requests, that there is nothing to do.
func impersonates(h http.Header) bool {
	for key := range h {
		if strings.HasPrefix(key, impersonatePrefix) {
			return true
		}
	}
	return false
}

// impersonators let users act as others, when they may.
type impersonators struct {
	authz authz.Authorizer
	// last is the mode, by name of the asking user, that allowed it last: it
	// is tried first, so that it costs what it costs alone.
	last *lru.Cache
}

// usersKept bounds how many users' modes are remembered.
const usersKept = 10000

func newImpersonators(z authz.Authorizer) *impersonators {
	return &impersonators{z, lru.New(usersKept)}
}

// A mode is one right to impersonate, which users have apart from others.
type mode struct {
	name string // "" is the oldest, which is not constrained
	// applies says that the mode is about such a user.
	applies func(want *user.DefaultInfo, who user.Info) bool
}

// verb is what the mode's rights are called.
func (m *mode) verb() string {
	if m.name == "" {
		return "impersonate"
	}
	return "impersonate:" + m.name
}

// groups are those that the impersonated user has: as asked, or those that his
// name stands for.
func (m *mode) groups(want *user.DefaultInfo) []string {
	if _, node := nodeOf(want.Name); node && m.name != "" {
		return []string{user.NodesGroup}
	}
	if namespace, _, err := serviceaccount.SplitUsername(want.Name); err == nil && len(want.Groups) == 0 {
		return serviceaccount.MakeGroupNames(namespace)
	}
	return want.Groups
}

// modes in the order they are tried: the most constrained first.
var modes = []mode{
	{associatedNode, func(want *user.DefaultInfo, who user.Info) bool {
		node, ok := nodeOf(want.Name)
		at := who.GetExtra()[serviceaccount.NodeNameKey]
		return ok && onlyNamed(want) && isServiceAccount(who.GetName()) && len(at) == 1 && at[0] == node
	}},
	{"arbitrary-node", func(want *user.DefaultInfo, _ user.Info) bool {
		_, ok := nodeOf(want.Name)
		return ok && onlyNamed(want)
	}},
	{"serviceaccount", func(want *user.DefaultInfo, _ user.Info) bool {
		return onlyNamed(want) && isServiceAccount(want.Name)
	}},
	{"user-info", func(want *user.DefaultInfo, _ user.Info) bool {
		_, node := nodeOf(want.Name)
		return !node && !isServiceAccount(want.Name)
	}},
	{"", func(*user.DefaultInfo, user.Info) bool { return true }},
}

const associatedNode = "associated-node"

func onlyNamed(u *user.DefaultInfo) bool {
	return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0
}

func isServiceAccount(name string) bool {
	_, _, err := serviceaccount.SplitUsername(name)
	return err == nil
}

func nodeOf(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, "system:node:")
	return node, ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// impersonate is who who acts as, and by which constrained right; the headers
// that say so leave the request.
func (i *impersonators) impersonate(ctx context.Context, h http.Header, who user.Info, info *request.Info) (user.Info, string, error) {
	want, err := wanted(h)
	if err != nil || want == nil {
		return who, "", err
	}
	first, known := -1, false
	if last, ok := i.last.Get(who.GetName()); ok {
		first, known = last.(int), true
	}
	var refused error
	for n := range len(modes) + 1 { // the one that served last, then all others
		at := n - 1
		switch {
		case n == 0 && !known, n > 0 && at == first:
			continue
		case n == 0:
			at = first
		}
		m := &modes[at]
		if !m.applies(want, who) {
			continue
		}
		target, err := i.try(ctx, m, want, who, info)
		if err == nil {
			i.last.Add(who.GetName(), at)
			if m.name == "" {
				return target, "", nil
			}
			return target, m.verb(), nil
		}
		if refused == nil {
			refused = err
		}
	}
	return nil, "", refused
}

// try asks for all rights that a mode needs.
func (i *impersonators) try(ctx context.Context, m *mode, want *user.DefaultInfo, who user.Info, info *request.Info) (user.Info, error) {
	asking := who
	if m.name == associatedNode { // the node itself was looked at; what else the token says is of no account
		asking = &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string][]string{
			"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(who.GetExtra()))}}
	}
	may := func(a *authz.Attributes) error {
		if ok, reason := authz.Allows(ctx, i.authz, a); !ok {
			return denied(a, reason)
		}
		return nil
	}
	if m.name != "" {
		on := attributes(asking, info)
		on.Verb = "impersonate-on:" + m.name + ":" + info.Verb
		if err := may(on); err != nil {
			return nil, err
		}
	}
	if err := (&rights{m, asking, may}).all(want); err != nil {
		return nil, err
	}
	target := *want
	target.Groups = m.groups(want)
	everybody := user.AllAuthenticated
	switch {
	case want.Name == user.Anonymous:
		everybody = user.AllUnauthenticated
	case slices.Contains(target.Groups, user.AllUnauthenticated):
		return &target, nil
	}
	if !slices.Contains(target.Groups, everybody) {
		target.Groups = append(slices.Clone(target.Groups), everybody)
	}
	return &target, nil
}

// wanted is the user that the headers name, which leave h; nil is none.
func wanted(h http.Header) (*user.DefaultInfo, error) {
	u := &user.DefaultInfo{
		Name: h.Get(authenticationv1.ImpersonateUserHeader), UID: h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(h.Values(authenticationv1.ImpersonateGroupHeader)),
	}
	for key, values := range h {
		if k, ok := strings.CutPrefix(key, authenticationv1.ImpersonateUserExtraHeaderPrefix); ok {
			if u.Extra == nil {
				u.Extra = map[string][]string{}
			}
			k = unescape(strings.ToLower(k))
			u.Extra[k] = append(u.Extra[k], values...)
		}
	}
	if u.Name == "" {
		if onlyNamed(u) {
			return nil, nil
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", u))
	}
	for key := range h {
		if strings.HasPrefix(key, impersonatePrefix) {
			delete(h, key)
		}
	}
	return u, nil
}

// unescape undoes the percent-encoding of extra keys.
func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}
