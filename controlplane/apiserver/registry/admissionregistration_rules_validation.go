package registry

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What failurePolicy and its like may be, as messages list them.
var (
	failurePolicies      = []admissionv1.FailurePolicyType{admissionv1.Fail, admissionv1.Ignore}
	matchPolicies        = []admissionv1.MatchPolicyType{admissionv1.Equivalent, admissionv1.Exact}
	reinvocationPolicies = []admissionv1.ReinvocationPolicyType{admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy}
	ruleScopes           = []admissionv1.ScopeType{admissionv1.AllScopes, admissionv1.ClusterScope, admissionv1.NamespacedScope}
	ruleOperations       = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Delete, admissionv1.Update}
	mutatingOperations   = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Update}
)

func validateAdmissionRule(r *admissionv1.RuleWithOperations, at *field.Path) field.ErrorList {
	f := &faults{}
	operations := at.Child("operations")
	if len(r.Operations) == 0 {
		f.required(operations, "")
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionv1.OperationAll) {
		f.invalid(operations, r.Operations, "if '*' is present, must not specify other operations")
	}
	for i, op := range r.Operations {
		among(f, op, operations.Index(i), ruleOperations...)
	}
	for _, list := range []struct {
		name, what string
		values     []string
	}{{"apiGroups", "API groups", r.APIGroups}, {"apiVersions", "API versions", r.APIVersions}} {
		if len(list.values) == 0 {
			f.required(at.Child(list.name), "")
		}
		if len(list.values) > 1 && slices.Contains(list.values, "*") {
			f.invalid(at.Child(list.name), list.values, "if '*' is present, must not specify other "+list.what)
		}
	}
	for i, version := range r.APIVersions { // the group may be empty, the version not
		if version == "" {
			f.required(at.Child("apiVersions").Index(i), "")
		}
	}
	f.add(validateRuleResources(r.Resources, at.Child("resources")))
	if r.Scope != nil {
		among(f, *r.Scope, at.Child("scope"), ruleScopes...)
	}
	return f.list
}

func validateRuleResources(resources []string, at *field.Path) field.ErrorList {
	f := &faults{}
	if len(resources) == 0 {
		f.required(at, "")
	}
	allSubs, allResources := map[string]bool{}, map[string]bool{} // x/* by x, */y by y
	everything, wildcard, plain := false, false, false
	for i, resource := range resources {
		switch resource {
		case "":
			f.required(at.Index(i), "")
			continue
		case "*/*":
			everything = true
		case "*":
			wildcard = true
		}
		name, sub, ok := strings.Cut(resource, "/")
		if !ok {
			plain = resource != "*" // the last one decides, upstream's way
			continue
		}
		if allSubs[name] {
			f.invalid(at.Index(i), resource, fmt.Sprintf("if '%s/*' is present, must not specify %s", name, resource))
		}
		if allResources[sub] {
			f.invalid(at.Index(i), resource, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, resource))
		}
		allSubs[name] = allSubs[name] || sub == "*"
		allResources[sub] = allResources[sub] || name == "*"
	}
	if len(resources) > 1 && everything {
		f.invalid(at, resources, "if '*/*' is present, must not specify other resources")
	}
	if wildcard && plain {
		f.invalid(at, resources, "if '*' is present, must not specify other resources without subresources")
	}
	return f.list
}

// validateMatchResources checks what a policy or binding applies to.
func validateMatchResources(m *admissionv1.MatchResources, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	f := &faults{}
	if m.MatchPolicy == nil {
		f.required(at.Child("matchPolicy"), "")
	} else {
		among(f, *m.MatchPolicy, at.Child("matchPolicy"), matchPolicies...)
	}
	for _, s := range []struct {
		name     string
		selector *metav1.LabelSelector
	}{{"namespaceSelector", m.NamespaceSelector}, {"objectSelector", m.ObjectSelector}} {
		if s.selector == nil {
			f.required(at.Child(s.name), "")
			continue
		}
		f.add(metav1validation.ValidateLabelSelector(s.selector, metav1validation.LabelSelectorValidationOptions{}, at.Child(s.name)))
	}
	for i := range m.ResourceRules {
		f.add(validateNamedRule(&m.ResourceRules[i], at.Child("resourceRules").Index(i)))
	}
	for i := range m.ExcludeResourceRules {
		f.add(validateNamedRule(&m.ExcludeResourceRules[i], at.Child("excludeResourceRules").Index(i)))
	}
	return f.list
}

func validateNamedRule(r *admissionv1.NamedRuleWithOperations, at *field.Path) field.ErrorList {
	f := &faults{}
	for i, name := range r.ResourceNames {
		f.add(invalid(content.IsPathSegmentName(name), name, at.Child("resourceNames").Index(i)))
		if slices.Contains(r.ResourceNames[:i], name) {
			f.duplicate(at.Child("resourceNames").Index(i), name)
		}
	}
	f.add(validateAdmissionRule(&r.RuleWithOperations, at))
	return f.list
}

// onlyMutatingOperations refuses rules on deletions, which have nothing to
// mutate.
func onlyMutatingOperations(m *admissionv1.MatchResources, at *field.Path) field.ErrorList {
	f := &faults{}
	for _, r := range m.ResourceRules {
		for _, op := range r.Operations {
			among(f, op, at.Child("resourceRules", "operations"), mutatingOperations...)
		}
	}
	return f.list
}

// defaultMatchResources fills what a policy or binding leaves out.
func defaultMatchResources(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	if m.MatchPolicy == nil {
		m.MatchPolicy = new(admissionv1.Equivalent)
	}
	if m.NamespaceSelector == nil {
		m.NamespaceSelector = &metav1.LabelSelector{}
	}
	if m.ObjectSelector == nil {
		m.ObjectSelector = &metav1.LabelSelector{}
	}
	for i := range m.ResourceRules {
		defaultScope(&m.ResourceRules[i].Rule)
	}
	for i := range m.ExcludeResourceRules {
		defaultScope(&m.ExcludeResourceRules[i].Rule)
	}
}

func defaultScope(r *admissionv1.Rule) {
	if r.Scope == nil {
		r.Scope = new(admissionv1.AllScopes)
	}
}

// staticSuffix warns of names that a later version keeps for configuration
// from files.
func staticSuffix(name string) []string {
	const suffix = ".static.k8s.io"
	if !strings.HasSuffix(name, suffix) {
		return nil
	}
	return []string{fmt.Sprintf("metadata.name: names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", suffix)}
}
