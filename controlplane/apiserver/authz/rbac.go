package authz

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

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

// rbacIndex is what is bound to whom, as of four revisions.
type rbacIndex struct {
	versions [4]int64
	bound    map[string][]grant // by subjectKey
	roles    map[string][]rbacv1.PolicyRule
	decided  decisions
}

// grant is one binding as one subject sees it.
type grant struct {
	namespace string // "" is everywhere
	binding   string // how reasons name it
	role      string
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
	// selectors makes a new role count at once.
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
	rules := slices.Clone(role.Rules)
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
	if ref.Kind == "Role" {
		name = namespace + "/" + ref.Name
	}
	rules, ok := ix.roles[name]
	if !ok {
		return
	}
	g := grant{namespace, binding, fmt.Sprintf("%s %q", ref.Kind, ref.Name), rules}
	for _, s := range subjects {
		var key string
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
			g.binding = fmt.Sprintf("%s of %s", binding, fmt.Sprintf("ServiceAccount %q", s.Name+"/"+ns))
		}
		ix.bound[key] = append(ix.bound[key], g)
	}
}

// grants calls visit for what is bound to the user in namespace, until it says no.
func (ix *rbacIndex) grants(a *Attributes, visit func(grant, string) bool) {
	subject := func(kind, name string) bool {
		for _, g := range ix.bound[subjectKey(kind, name)] {
			if g.namespace != "" && g.namespace != a.Namespace {
				continue
			}
			if !visit(g, fmt.Sprintf("%s %q", kind, name)) {
				return false
			}
		}
		return true
	}
	if !subject(rbacv1.UserKind, a.User.GetName()) {
		return
	}
	for _, group := range a.User.GetGroups() {
		if !subject(rbacv1.GroupKind, group) {
			return
		}
	}
}

// Authorize allows what a bound rule allows.
func (r *RBAC) Authorize(_ context.Context, a *Attributes) (bool, string) {
	ix := r.current()
	key := decisionKey(a)
	if allowed, ok := ix.decided.get(key); ok && allowed {
		return true, ""
	}
	allowed, reason := false, ""
	ix.grants(a, func(g grant, subject string) bool {
		for i := range g.rules {
			if RuleAllows(a, &g.rules[i]) {
				allowed = true
				reason = fmt.Sprintf("RBAC: allowed by %s of %s to %s", g.binding, g.role, subject)
				return false
			}
		}
		return true
	})
	if allowed {
		ix.decided.put(key)
	}
	return allowed, reason
}

// Rules are all rules that hold for the user in namespace.
func (r *RBAC) Rules(a *Attributes) (rules []rbacv1.PolicyRule) {
	r.current().grants(a, func(g grant, _ string) bool {
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

// RuleAllows says whether one rule covers the action.
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
			r, rest, _ := strings.Cut(s, "/")
			if rest == sub && (r == resource || r == "*") {
				return true
			}
		}
	}
	return false
}

// decisions remembers what was allowed under one index, a bounded number.
type decisions struct {
	mu      sync.RWMutex
	allowed map[decision]struct{}
}

type decision struct {
	user, groups, verb, namespace, group, resource, sub, name, path string
}

const decisionsKept = 16384

func decisionKey(a *Attributes) decision {
	return decision{a.User.GetName(), strings.Join(a.User.GetGroups(), ","), a.Verb, a.Namespace, a.Group, a.Resource, a.Subresource, a.Name, a.Path}
}

func (d *decisions) get(key decision) (allowed, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, ok = d.allowed[key]
	return ok, ok
}

func (d *decisions) put(key decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.allowed == nil || len(d.allowed) >= decisionsKept {
		d.allowed = map[decision]struct{}{}
	}
	d.allowed[key] = struct{}{}
}
