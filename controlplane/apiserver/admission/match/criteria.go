package match

import (
	"context"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/admission"
)

// Criteria are what a webhook, policy or binding applies to, ready to be asked.
type Criteria struct {
	rules, exclude      []admissionv1.NamedRuleWithOperations
	all                 bool // no rules: everything
	equivalent          bool
	namespaces, objects labels.Selector
	err                 error // a selector that cannot be read
}

// ForWebhook are a webhook's criteria.
func ForWebhook(rules []admissionv1.RuleWithOperations, policy *admissionv1.MatchPolicyType, namespaces, objects *metav1.LabelSelector) *Criteria {
	c := newCriteria(policy, namespaces, objects)
	for _, r := range rules {
		c.rules = append(c.rules, admissionv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	return c
}

// ForResources are a policy's or binding's criteria. Nil is everything, nil too.
func ForResources(m *admissionv1.MatchResources) *Criteria {
	if m == nil {
		return nil
	}
	c := newCriteria(m.MatchPolicy, m.NamespaceSelector, m.ObjectSelector)
	c.rules, c.exclude, c.all = m.ResourceRules, m.ExcludeResourceRules, len(m.ResourceRules) == 0
	return c
}

func newCriteria(policy *admissionv1.MatchPolicyType, namespaces, objects *metav1.LabelSelector) *Criteria {
	c := &Criteria{equivalent: policy != nil && *policy == admissionv1.Equivalent}
	var err error
	if c.namespaces, c.err = metav1.LabelSelectorAsSelector(namespaces); c.err == nil {
		c.objects, err = metav1.LabelSelectorAsSelector(objects)
		c.err = err
	}
	return c
}

// Match reports whether the write is meant, and in which version. Faults count
// only for writes that are.
func (c *Criteria) Match(ctx context.Context, r *Request) (t Target, ok bool, err error) {
	if c == nil {
		return r.own(), true, nil
	}
	if c.err == nil && !c.objects.Empty() && !labelled(r.Object, c.objects) && !labelled(r.Old, c.objects) {
		return Target{}, false, nil
	}
	if _, excluded := c.anyRule(c.exclude, r); excluded {
		return Target{}, false, nil
	}
	if t, ok = r.own(), true; !c.all {
		if t, ok = c.anyRule(c.rules, r); !ok {
			return Target{}, false, nil
		}
	}
	if c.err != nil {
		return t, false, apierrors.NewInternalError(c.err)
	}
	// Of the objects in no namespace, only Namespaces are selected by it.
	if c.namespaces.Empty() || r.Namespace == "" && r.Resource.Resource != "namespaces" {
		return t, true, nil
	}
	set, err := r.namespaceLabels(ctx)
	if err != nil {
		return t, false, err
	}
	return t, c.namespaces.Matches(set), nil
}

func labelled(obj runtime.Object, selector labels.Selector) bool {
	o, ok := obj.(metav1.Object)
	return ok && selector.Matches(labels.Set(o.GetLabels()))
}

// anyRule finds the version that a rule means, the request's own first.
func (c *Criteria) anyRule(rules []admissionv1.NamedRuleWithOperations, r *Request) (Target, bool) {
	for i := range rules {
		if matches(&rules[i], r, r.Resource) {
			return r.own(), true
		}
	}
	if !c.equivalent || len(rules) == 0 {
		return Target{}, false
	}
	forms := r.equivalents()
	for i := range rules {
		for _, f := range forms {
			if matches(&rules[i], r, f.Resource) {
				return Target{f, true}, true
			}
		}
	}
	return Target{}, false
}

func matches(rule *admissionv1.NamedRuleWithOperations, r *Request, resource schema.GroupVersionResource) bool {
	return inScope(rule.Scope, r.Attributes, resource) &&
		has(rule.Operations, admissionv1.OperationAll, admissionv1.OperationType(r.Operation)) &&
		has(rule.APIGroups, "*", resource.Group) && has(rule.APIVersions, "*", resource.Version) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool {
			name, sub, _ := strings.Cut(pattern, "/")
			return (name == "*" || name == resource.Resource) && (sub == "*" || sub == r.Subresource)
		}) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.Name))
}

func has[S ~string](list []S, wildcard, want S) bool {
	return slices.ContainsFunc(list, func(s S) bool { return s == wildcard || s == want })
}

var namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// inScope counts Namespaces among the things that are in none.
func inScope(scope *admissionv1.ScopeType, a *admission.Attributes, resource schema.GroupVersionResource) bool {
	if scope == nil {
		return true
	}
	cluster := a.Namespace == "" || resource == namespaces
	switch *scope {
	case admissionv1.AllScopes:
		return true
	case admissionv1.ClusterScope:
		return cluster
	case admissionv1.NamespacedScope:
		return !cluster
	}
	return false
}
