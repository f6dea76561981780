package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/auth/rbac/validation"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/request"
)

// rbacEscalation keeps users from granting what they do not have: a role may
// hold only rules its author has, or the author may escalate; a binding may
// refer only to a role whose rules its author has, or may bind.
type rbacEscalation struct {
	rbac       *authz.RBAC
	authorizer authz.Authorizer
}

func (*rbacEscalation) Name() string { return "RBACEscalation" }

func (r *rbacEscalation) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Operation != admission.Create && a.Operation != admission.Update || a.User == nil || a.Resource.Group != rbacv1.GroupName {
		return nil
	}
	for _, g := range a.User.GetGroups() {
		if g == "system:masters" {
			return nil
		}
	}
	if onlyCollectorFields(a.Object, a.Old) {
		return nil
	}
	switch o := a.Object.(type) {
	case *rbacv1.Role:
		return r.grant(ctx, a, o.Rules, false)
	case *rbacv1.ClusterRole:
		old, _ := a.Old.(*rbacv1.ClusterRole)
		return r.grant(ctx, a, o.Rules, aggregates(o) || aggregates(old))
	case *rbacv1.RoleBinding:
		return r.bind(ctx, a, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return r.bind(ctx, a, o.RoleRef)
	}
	return nil
}

// onlyCollectorFields lets the garbage collector do its work on roles that it
// could not grant. All else counts, labels too: they decide which roles a role
// is collected into.
func onlyCollectorFields(obj, old runtime.Object) bool {
	was, ok := old.(metav1.Object)
	if !ok {
		return false
	}
	same := obj.DeepCopyObject()
	is := same.(metav1.Object)
	is.SetOwnerReferences(was.GetOwnerReferences())
	is.SetFinalizers(was.GetFinalizers())
	is.SetManagedFields(was.GetManagedFields())
	is.SetResourceVersion(was.GetResourceVersion())
	same.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return equality.Semantic.DeepEqual(same, old)
}

func aggregates(role *rbacv1.ClusterRole) bool {
	return role != nil && role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

// everything is what an aggregating role may come to hold.
var everything = []rbacv1.PolicyRule{
	{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
}

// grant checks the author of a role.
func (r *rbacEscalation) grant(ctx context.Context, a *admission.Attributes, rules []rbacv1.PolicyRule, collects bool) error {
	ask := &authz.Attributes{
		User: a.User, Verb: "escalate", Namespace: a.Namespace, Group: rbacv1.GroupName, Version: "*",
		Resource: a.Resource.Resource, IsResource: true,
	}
	if info := request.InfoFrom(ctx); info != nil { // a name in the body is no name asked for
		ask.Name = info.Name
	}
	if allowed, _ := authz.Allows(ctx, r.authorizer, ask); allowed {
		return nil
	}
	if err := r.confirm(a, rules); err != nil {
		return err
	}
	if collects && r.confirm(a, everything) != nil {
		return forbidden(a, errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

// bind checks the author of a binding.
func (r *rbacEscalation) bind(ctx context.Context, a *admission.Attributes, ref rbacv1.RoleRef) error {
	resource, namespace := "clusterroles", ""
	if ref.Kind == "Role" {
		resource, namespace = "roles", a.Namespace
	}
	ask := &authz.Attributes{
		User: a.User, Verb: "bind", Namespace: a.Namespace, Group: rbacv1.GroupName, Version: "*",
		Resource: resource, Name: ref.Name, IsResource: true,
	}
	if allowed, _ := authz.Allows(ctx, r.authorizer, ask); allowed {
		return nil
	}
	rules, ok := r.rbac.RoleRules(namespace, ref.Name)
	if !ok {
		return apierrors.NewNotFound(rbacv1.Resource(resource), ref.Name)
	}
	return r.confirm(a, rules)
}

// confirm refuses rules that the user does not have.
func (r *rbacEscalation) confirm(a *admission.Attributes, rules []rbacv1.PolicyRule) error {
	have := r.rbac.PolicyRules(&authz.Attributes{User: a.User, Namespace: a.Namespace})
	if ok, missing := validation.Covers(have, rules); !ok {
		return forbidden(a, fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
			a.User.GetName(), a.User.GetGroups(), describe(missing)))
	}
	return nil
}

// describe writes rules one to a line, those that differ by verb alone
// together.
func describe(rules []rbacv1.PolicyRule) string {
	type simple struct{ group, resource, name string }
	var lines []string
	at := map[simple]*rbacv1.PolicyRule{}
	for _, r := range rules {
		if len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 || len(r.NonResourceURLs) > 0 {
			lines = append(lines, line(&r))
			continue
		}
		key := simple{group: r.APIGroups[0], resource: r.Resources[0]}
		if len(r.ResourceNames) == 1 {
			key.name = "/" + r.ResourceNames[0]
		}
		if have := at[key]; have != nil {
			have.Verbs = append(have.Verbs, r.Verbs...)
		} else {
			at[key] = r.DeepCopy()
		}
	}
	for _, r := range at {
		lines = append(lines, line(r))
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

func line(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"NonResourceURLs", r.NonResourceURLs},
		{"ResourceNames", r.ResourceNames}, {"Verbs", r.Verbs},
	} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
