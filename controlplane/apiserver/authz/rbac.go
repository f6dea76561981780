package authz

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/watchcache"
)

// RBAC allows what Roles and ClusterRoles bound to a user allow. It keeps an
// index from subject to bindings, made anew when an RBAC object has changed.
type RBAC struct {
	roles, clusterRoles, roleBindings, clusterRoleBindings *watchcache.Resource

	mu    sync.Mutex
	index atomic.Pointer[rbacIndex]
}

// NewRBAC reads the RBAC objects of cache.
func NewRBAC(cache *watchcache.Cache) *RBAC {
	of := func(resource string) *watchcache.Resource {
		return cache.Resource(rbacv1.SchemeGroupVersion.WithResource(resource))
	}
	return &RBAC{
		roles: of("roles"), clusterRoles: of("clusterroles"),
		roleBindings: of("rolebindings"), clusterRoleBindings: of("clusterrolebindings"),
	}
}

// rbacIndex holds the bindings by subject, as of the revisions of the four resources.
type rbacIndex struct {
	versions [4]int64
	bound    map[string][]grant // by subjectKey
	roles    map[string][]rbacv1.PolicyRule
	decided  decisions
}

// grant is one binding as one subject sees it.
type grant struct {
	namespace string // "" is everywhere
	reason    string
	rules     []rbacv1.PolicyRule
}

func subjectKey(kind, name string) string { return kind + "\x00" + name }

func (r *RBAC) current() *rbacIndex {
	versions := [4]int64{r.roles.Changed(), r.clusterRoles.Changed(), r.roleBindings.Changed(), r.clusterRoleBindings.Changed()}
	if ix := r.index.Load(); ix != nil && ix.versions == versions {
		return ix
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ix := r.index.Load(); ix != nil && ix.versions == versions {
		return ix
	}
	ix := r.build(versions)
	r.index.Store(ix)
	return ix
}

func (r *RBAC) build(versions [4]int64) *rbacIndex {
	ix := &rbacIndex{versions: versions, bound: map[string][]grant{}, roles: map[string][]rbacv1.PolicyRule{}}
	var aggregated []*rbacv1.ClusterRole
	var all []*rbacv1.ClusterRole
	watchcache.Each(r.clusterRoles, "", func(role *rbacv1.ClusterRole) bool {
		ix.roles[role.Name] = role.Rules
		all = append(all, role)
		if role.AggregationRule != nil {
			aggregated = append(aggregated, role)
		}
		return true
	})
	// The aggregation controller writes these rules too; taking them from the
	// selectors makes a new role, and the loss of one, count at once.
	for _, role := range aggregated {
		ix.roles[role.Name] = aggregate(role, all, map[string]bool{role.Name: true})
	}
	watchcache.Each(r.roles, "", func(role *rbacv1.Role) bool {
		ix.roles[role.Namespace+"/"+role.Name] = role.Rules
		return true
	})
	watchcache.Each(r.clusterRoleBindings, "", func(b *rbacv1.ClusterRoleBinding) bool {
		ix.bind("", fmt.Sprintf("ClusterRoleBinding %q", b.Name), b.RoleRef, b.Subjects)
		return true
	})
	watchcache.Each(r.roleBindings, "", func(b *rbacv1.RoleBinding) bool {
		ix.bind(b.Namespace, fmt.Sprintf("RoleBinding %q", b.Name+"/"+b.Namespace), b.RoleRef, b.Subjects)
		return true
	})
	return ix
}

// aggregate collects the rules of the roles that role's selectors choose.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole, seen map[string]bool) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	if len(role.AggregationRule.ClusterRoleSelectors) == 0 {
		return role.Rules
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue
		}
		for _, other := range all {
			if seen[other.Name] || !sel.Matches(labels.Set(other.Labels)) {
				continue
			}
			seen[other.Name] = true
			if other.AggregationRule != nil {
				rules = append(rules, aggregate(other, all, seen)...)
			} else {
				rules = append(rules, other.Rules...)
			}
		}
	}
	return rules
}

func (ix *rbacIndex) bind(namespace, binding string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	name := ref.Name
	switch ref.Kind {
	case "Role":
		name = namespace + "/" + ref.Name
	case "ClusterRole":
	default:
		return
	}
	rules, ok := ix.roles[name]
	if !ok {
		return
	}
	source := fmt.Sprintf("%s of %s %q", binding, ref.Kind, ref.Name)
	for _, s := range subjects {
		var key string
		subject := s.Kind + " " + strconv.Quote(s.Name)
		switch s.Kind {
		case rbacv1.UserKind, rbacv1.GroupKind:
			key = subjectKey(s.Kind, s.Name)
		case rbacv1.ServiceAccountKind:
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			if ns == "" {
				continue
			}
			key = subjectKey(rbacv1.UserKind, serviceaccount.MakeUsername(ns, s.Name))
			subject = s.Kind + " " + strconv.Quote(s.Name+"/"+ns)
		default:
			continue
		}
		ix.bound[key] = append(ix.bound[key], grant{namespace, "RBAC: allowed by " + source + " to " + subject, rules})
	}
}

// grants calls visit for what is bound to the user in namespace, until it says no.
func (ix *rbacIndex) grants(a *Attributes, visit func(*grant) bool) {
	of := func(list []grant) bool {
		for i := range list {
			if g := &list[i]; (g.namespace == "" || g.namespace == a.Namespace) && !visit(g) {
				return false
			}
		}
		return true
	}
	if !of(ix.bound[subjectKey(rbacv1.UserKind, a.User.GetName())]) {
		return
	}
	for _, group := range a.User.GetGroups() {
		if !of(ix.bound[subjectKey(rbacv1.GroupKind, group)]) {
			return
		}
	}
}

// Authorize allows what a bound rule allows.
func (r *RBAC) Authorize(_ context.Context, a *Attributes) (authorizer.Decision, string, error) {
	return allowOrNoOpinion(r.allows(a))
}

func (r *RBAC) allows(a *Attributes) (bool, string) {
	ix := r.current()
	if reason, ok := ix.decided.get(a); ok {
		return true, reason
	}
	allowed, anyName, reason := false, false, ""
	ix.grants(a, func(g *grant) bool {
		for i := range g.rules {
			if rule := &g.rules[i]; RuleAllows(a, rule) {
				allowed, anyName, reason = true, len(rule.ResourceNames) == 0, g.reason
				return false
			}
		}
		return true
	})
	if allowed {
		ix.decided.put(a, anyName, reason)
	}
	return allowed, reason
}

// PolicyRules are all rules that hold for the user in namespace.
func (r *RBAC) PolicyRules(a *Attributes) (rules []rbacv1.PolicyRule) {
	r.current().grants(a, func(g *grant) bool {
		rules = append(rules, g.rules...)
		return true
	})
	return rules
}

// RoleRules are the rules of a Role in namespace or, with namespace "", of a
// ClusterRole; false when there is none.
func (r *RBAC) RoleRules(namespace, name string) ([]rbacv1.PolicyRule, bool) {
	if namespace != "" {
		name = namespace + "/" + name
	}
	rules, ok := r.current().roles[name]
	return rules, ok
}

// RuleAllows reports whether one rule covers the action.
func RuleAllows(a *Attributes, rule *rbacv1.PolicyRule) bool {
	if !has(rule.Verbs, a.Verb) {
		return false
	}
	if !a.IsResource {
		for _, url := range rule.NonResourceURLs {
			if url == rbacv1.NonResourceAll || url == a.Path {
				return true
			}
			if prefix, ok := strings.CutSuffix(url, "*"); ok && strings.HasPrefix(a.Path, prefix) {
				return true
			}
		}
		return false
	}
	return has(rule.APIGroups, a.Group) && resourceCovered(rule.Resources, a.Resource, a.Subresource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.Name))
}

func has(list []string, want string) bool {
	for _, s := range list {
		if s == "*" || s == want {
			return true
		}
	}
	return false
}

func resourceCovered(list []string, resource, sub string) bool {
	for _, s := range list {
		switch {
		case s == "*":
			return true
		case sub == "":
			if s == resource {
				return true
			}
		default:
			r, ok := strings.CutSuffix(s, sub)
			if r, slash := strings.CutSuffix(r, "/"); ok && slash && (r == resource || r == "*") {
				return true
			}
		}
	}
	return false
}
