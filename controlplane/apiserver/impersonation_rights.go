package apiserver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/authz"
)

// rights are those that one mode asks for what is impersonated.
type rights struct {
	m   *mode
	who user.Info
	may func(*authz.Attributes) error
}

// many is from how many questions on a right to everything is asked for first.
const many = 4

func (r *rights) constrained() bool { return r.m.name != "" }

// of is the question for one thing that is impersonated.
func (r *rights) of(group, resource, name string) *authz.Attributes {
	return &authz.Attributes{User: r.who, Verb: r.m.verb(), Group: group, Version: "v1", Resource: resource, Name: name, IsResource: true}
}

// subjects is the API group of users and groups, which is one of its own in
// constrained modes.
func (r *rights) subjects() string {
	if r.constrained() {
		return authenticationv1.GroupName
	}
	return ""
}

func (r *rights) all(want *user.DefaultInfo) error {
	if err := r.name(want.Name); err != nil {
		return err
	}
	if want.UID != "" {
		if err := r.may(r.of(authenticationv1.GroupName, "uids", want.UID)); err != nil {
			return err
		}
	}
	if err := r.groups(want.Groups); err != nil {
		return err
	}
	return r.extra(want.Extra)
}

func (r *rights) name(name string) error {
	a := r.of(r.subjects(), "users", name)
	if node, ok := nodeOf(name); ok && r.constrained() {
		a.Resource, a.Name = "nodes", node
		if r.m.name == associatedNode { // whichever node that is
			a.Name = "*"
		}
	} else if namespace, account, err := serviceaccount.SplitUsername(name); err == nil {
		a.Resource, a.Namespace, a.Name = "serviceaccounts", namespace, account
	}
	return r.may(a)
}

func (r *rights) groups(groups []string) error {
	if len(groups) == 0 {
		return nil
	}
	a := r.of(r.subjects(), "groups", "")
	if r.constrained() {
		if slices.Contains(groups, "") {
			return denied(a, "impersonating the empty string group is not allowed")
		}
		if slices.Contains(groups, user.SystemPrivilegedGroup) {
			a.Name = user.SystemPrivilegedGroup
			return denied(a, "impersonating the system:masters group is not allowed")
		}
		if a.Name = "*"; len(groups) >= many && r.may(a) == nil {
			return nil
		}
	}
	for _, g := range groups {
		if err := r.may(r.of(r.subjects(), "groups", g)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rights) extra(extra map[string][]string) error {
	if len(extra) == 0 {
		return nil
	}
	of := func(key, value string) *authz.Attributes {
		a := r.of(authenticationv1.GroupName, "userextras", value)
		a.Subresource = key
		return a
	}
	if r.constrained() {
		count := 0
		for key, values := range extra {
			if err := soundExtra(key, values); err != nil {
				return denied(of("", ""), err.Error())
			}
			count += len(values)
		}
		if count >= many && r.may(of("*", "*")) == nil {
			return nil
		}
	}
	for key, values := range extra {
		for _, v := range values {
			if err := r.may(of(key, v)); err != nil {
				return err
			}
		}
	}
	return nil
}

// soundExtra refuses what no authenticator would say of a user.
func soundExtra(key string, values []string) error {
	if key == "" {
		return errors.New("impersonating the empty string key in extra is not allowed")
	}
	if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
		return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
	}
	switch {
	case key != strings.ToLower(key):
		return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
	case len(values) == 0:
		return errors.New("impersonating empty values in extra is not allowed")
	case slices.Contains(values, ""):
		return errors.New("impersonating the empty string value in extra is not allowed")
	}
	return nil
}
