package admission

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/auth/rbac/validation"

	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
)

// rbacEscalation keeps users from granting what they do not have: a role may
// hold only rules its author has, or the author may escalate; a binding may
// refer only to a role whose rules its author has, or may bind.
type rbacEscalation struct {
	rbac       *authz.RBAC
	authorizer authz.Authorizer
}

func (*rbacEscalation) Name() string { return "RBACEscalation" }

func (r *rbacEscalation) Validate(ctx context.Context, a *endpoints.Attributes) error {
	if a.Operation != endpoints.Create && a.Operation != endpoints.Update || a.User == nil || a.Resource.Group != rbacv1.GroupName {
		return nil
	}
	for _, g := range a.User.GetGroups() {
		if g == "system:masters" {
			return nil
		}
	}
	var rules []rbacv1.PolicyRule
	var ref *rbacv1.RoleRef
	switch o := a.Object.(type) {
	case *rbacv1.Role:
		if old, ok := a.Old.(*rbacv1.Role); ok && equality.Semantic.DeepEqual(old.Rules, o.Rules) {
			return nil
		}
		rules = o.Rules
	case *rbacv1.ClusterRole:
		if old, ok := a.Old.(*rbacv1.ClusterRole); ok && equality.Semantic.DeepEqual(old.Rules, o.Rules) &&
			equality.Semantic.DeepEqual(old.AggregationRule, o.AggregationRule) {
			return nil
		}
		rules = o.Rules
		if o.AggregationRule != nil { // it may collect anything
			rules = append(rules[:len(rules):len(rules)],
				rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
				rbacv1.PolicyRule{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}})
		}
	case *rbacv1.RoleBinding:
		if old, ok := a.Old.(*rbacv1.RoleBinding); ok && equality.Semantic.DeepEqual(old.Subjects, o.Subjects) && old.RoleRef == o.RoleRef {
			return nil
		}
		ref = &o.RoleRef
	case *rbacv1.ClusterRoleBinding:
		if old, ok := a.Old.(*rbacv1.ClusterRoleBinding); ok && equality.Semantic.DeepEqual(old.Subjects, o.Subjects) && old.RoleRef == o.RoleRef {
			return nil
		}
		ref = &o.RoleRef
	default:
		return nil
	}
	ask := &authz.Attributes{User: a.User, Namespace: a.Namespace, Group: rbacv1.GroupName, Version: "v1", IsResource: true, Resource: a.Resource.Resource, Name: a.Name, Verb: "escalate"}
	if ref != nil {
		ask.Verb, ask.Name, ask.Resource = "bind", ref.Name, "clusterroles"
		namespace := ""
		if ref.Kind == "Role" {
			ask.Resource, namespace = "roles", a.Namespace
		}
		var ok bool
		if rules, ok = r.rbac.RoleRules(namespace, ref.Name); !ok {
			if allowed, _ := r.authorizer.Authorize(ctx, ask); allowed {
				return nil
			}
			return forbidden(a, fmt.Errorf("%s %q not found", ask.Resource, ref.Name))
		}
	}
	if allowed, _ := r.authorizer.Authorize(ctx, ask); allowed {
		return nil
	}
	have := r.rbac.Rules(&authz.Attributes{User: a.User, Namespace: a.Namespace})
	if ok, missing := validation.Covers(have, rules); !ok {
		return forbidden(a, fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
			a.User.GetName(), a.User.GetGroups(), describe(missing)))
	}
	return nil
}

func describe(rules []rbacv1.PolicyRule) string {
	s := ""
	for i, r := range rules {
		if i > 0 {
			s += "\n"
		}
		s += fmt.Sprintf("{APIGroups:%q, Resources:%q, Verbs:%q}", r.APIGroups, r.Resources, r.Verbs)
	}
	return s
}
