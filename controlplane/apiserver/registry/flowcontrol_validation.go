package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

var flowVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}

func validateFlowSchema(_ context.Context, s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	switch p, q := s.Spec.MatchingPrecedence, at.Child("matchingPrecedence"); {
	case p <= 0:
		f.invalid(q, p, "must be a positive value")
	case p > flowcontrolv1.FlowSchemaMaxMatchingPrecedence:
		f.invalid(q, p, fmt.Sprintf("must not be greater than %v", flowcontrolv1.FlowSchemaMaxMatchingPrecedence))
	case p == 1 && s.Name != flowcontrolv1.FlowSchemaNameExempt:
		f.invalid(q, p, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if m := s.Spec.DistinguisherMethod; m != nil {
		methods := []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType}
		if !slices.Contains(methods, m.Type) {
			shown := struct{ Type string }{string(m.Type)} // upstream shows its internal type
			f.list = append(f.list, field.NotSupported(at.Child("distinguisherMethod", "type"), shown, methods))
		}
	}
	level := at.Child("priorityLevelConfiguration", "name")
	if name := s.Spec.PriorityLevelConfiguration.Name; name == "" {
		f.required(level, "must reference a priority level")
	} else {
		f.add(invalid(NameIsDNSSubdomain(name, false), name, level))
	}
	for i := range s.Spec.Rules {
		f.add(validateFlowRule(&s.Spec.Rules[i], at.Child("rules").Index(i)))
	}
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == s.Name && !same(s.Spec, fixed.Spec) {
			f.invalid(at, s.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", s.Name))
		}
	}
	f.add(validateFlowSchemaStatus(&s.Status))
	return f.list
}

func validateFlowSchemaStatus(s *flowcontrolv1.FlowSchemaStatus) field.ErrorList {
	var types []string
	for _, c := range s.Conditions {
		types = append(types, string(c.Type))
	}
	return conditionTypes(types)
}

func validatePriorityLevelStatus(s *flowcontrolv1.PriorityLevelConfigurationStatus) field.ErrorList {
	var types []string
	for _, c := range s.Conditions {
		types = append(types, string(c.Type))
	}
	return conditionTypes(types)
}

// conditionTypes demands that each condition of a status has a type, and one
// of its own.
func conditionTypes(types []string) field.ErrorList {
	var f faults
	seen := map[string]bool{}
	for i, t := range types {
		p := field.NewPath("status", "conditions").Index(i).Child("type")
		if seen[t] {
			f.duplicate(p, t)
		}
		seen[t] = true
		if t == "" {
			f.required(p, "")
		}
	}
	return f.list
}

func validateFlowRule(r *flowcontrolv1.PolicyRulesWithSubjects, at *field.Path) field.ErrorList {
	var f faults
	if len(r.Subjects) == 0 {
		f.required(at.Child("subjects"), "subjects must contain at least one value")
	}
	for i := range r.Subjects {
		f.add(validateFlowSubject(&r.Subjects[i], at.Child("subjects").Index(i)))
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		f.required(at, "at least one of resourceRules and nonResourceRules has to be non-empty")
	}
	for i := range r.ResourceRules {
		f.add(validateFlowResourceRule(&r.ResourceRules[i], at.Child("resourceRules").Index(i)))
	}
	for i := range r.NonResourceRules {
		f.add(validateFlowPathRule(&r.NonResourceRules[i], at.Child("nonResourceRules").Index(i)))
	}
	return f.list
}

func validateFlowSubject(s *flowcontrolv1.Subject, at *field.Path) field.ErrorList {
	var f faults
	parts := []struct {
		kind  flowcontrolv1.SubjectKind
		field string
		set   bool
		check func(at *field.Path)
	}{
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil, func(at *field.Path) {
			if s.Group.Name == "" {
				f.required(at.Child("name"), "")
			}
		}},
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil, func(at *field.Path) {
			name, namespace := s.ServiceAccount.Name, s.ServiceAccount.Namespace
			if name == "" {
				f.required(at.Child("name"), "")
			} else if name != flowcontrolv1.NameAll {
				f.add(invalid(validation.ValidateServiceAccountName(name, false), name, at.Child("name")))
			}
			if namespace == "" {
				f.required(at.Child("namespace"), "must specify namespace for service account")
			} else {
				f.add(invalid(NameIsDNSLabel(namespace, false), namespace, at.Child("namespace")))
			}
		}},
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil, func(at *field.Path) {
			if s.User.Name == "" {
				f.required(at.Child("name"), "")
			}
		}},
	}
	var kinds []flowcontrolv1.SubjectKind
	for _, p := range parts {
		kinds = append(kinds, p.kind)
	}
	if !slices.Contains(kinds, s.Kind) {
		f.list = append(f.list, field.NotSupported(at.Child("kind"), s.Kind, kinds))
		return f.list
	}
	for _, p := range parts {
		q := at.Child(p.field)
		switch {
		case p.kind == s.Kind && !p.set:
			f.required(q, fmt.Sprintf("%s is required when subject kind is '%s'", p.field, p.kind))
		case p.kind == s.Kind:
			p.check(q)
		case p.set:
			f.forbidden(q, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", p.field, p.kind))
		}
	}
	return f.list
}

// wildcardAlone faults a list that has "*" and more.
func (f *faults) wildcardAlone(list []string, at *field.Path, what string) {
	if len(list) > 1 && slices.Contains(list, "*") {
		f.invalid(at, list, "if '*' is present, must not specify other "+what)
	}
}

func (f *faults) flowVerbs(verbs []string, at *field.Path) {
	switch {
	case len(verbs) == 0:
		f.required(at, "verbs must contain at least one value")
	case slices.Contains(verbs, "*"):
		f.wildcardAlone(verbs, at, "verbs")
	case slices.ContainsFunc(verbs, func(v string) bool { return !slices.Contains(flowVerbs, v) }):
		f.list = append(f.list, field.NotSupported(at, verbs, flowVerbs))
	}
}

func validateFlowResourceRule(r *flowcontrolv1.ResourcePolicyRule, at *field.Path) field.ErrorList {
	var f faults
	f.flowVerbs(r.Verbs, at.Child("verbs"))
	if len(r.APIGroups) == 0 {
		f.required(at.Child("apiGroups"), "resource rules must supply at least one api group")
	}
	f.wildcardAlone(r.APIGroups, at.Child("apiGroups"), "api groups")
	if len(r.Resources) == 0 {
		f.required(at.Child("resources"), "resource rules must supply at least one resource")
	}
	f.wildcardAlone(r.Resources, at.Child("resources"), "resources")
	switch q := at.Child("namespaces"); {
	case len(r.Namespaces) == 0 && !r.ClusterScope:
		f.required(q, "resource rules that are not cluster scoped must supply at least one namespace")
	case slices.Contains(r.Namespaces, "*"):
		f.wildcardAlone(r.Namespaces, q, "namespaces")
	default:
		for i, ns := range r.Namespaces {
			for _, msg := range NameIsDNSLabel(ns, false) {
				f.invalid(q.Index(i), ns, "each member of this list must be '*' or a DNS-1123 label; "+msg)
			}
		}
	}
	return f.list
}

func validateFlowPathRule(r *flowcontrolv1.NonResourcePolicyRule, at *field.Path) field.ErrorList {
	var f faults
	f.flowVerbs(r.Verbs, at.Child("verbs"))
	q := at.Child("nonResourceURLs")
	switch {
	case len(r.NonResourceURLs) == 0:
		f.required(q, "nonResourceURLs must contain at least one value")
	case slices.Contains(r.NonResourceURLs, "*"):
		f.wildcardAlone(r.NonResourceURLs, q, "non-resource URLs")
	default:
		for i, path := range r.NonResourceURLs {
			if msg := flowPathFault(path); msg != "" {
				f.invalid(q.Index(i), path, msg)
			}
		}
	}
	return f.list
}

func flowPathFault(path string) string {
	stars := strings.Count(path, "*")
	switch {
	case path == "":
		return "must not be empty"
	case path[0] != '/':
		return "must start with slash"
	case strings.Contains(path, " "):
		return "must not contain white-space"
	case strings.Contains(path, "//"):
		return "must not contain double slash"
	case stars > 1, stars == 1 && !strings.HasSuffix(path, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func validatePriorityLevel(_ context.Context, l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var f faults
	const zeroShares = flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey
	if _, ok := l.Annotations[zeroShares]; ok {
		f.forbidden(field.NewPath("metadata", "annotations"), fmt.Sprintf("annotation '%s' is forbidden", zeroShares))
	}
	at := field.NewPath("spec")
	s := &l.Spec
	if (l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != (s.Type == flowcontrolv1.PriorityLevelEnablementExempt) {
		f.invalid(at.Child("type"), s.Type, "must be 'Exempt' if and only if `name` is 'exempt'")
	}
	switch s.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		if s.Limited != nil {
			f.forbidden(at.Child("limited"), "must be nil if the type is not Limited")
		}
		if e := s.Exempt; e != nil {
			f.shares(e.NominalConcurrencyShares, e.LendablePercent, at.Child("exempt"))
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if s.Exempt != nil {
			f.forbidden(at.Child("exempt"), "must be nil if the type is Limited")
		}
		if s.Limited == nil {
			f.required(at.Child("limited"), "must not be empty when type is Limited")
		} else {
			f.add(validateLimitedLevel(s.Limited, at.Child("limited")))
		}
	default:
		f.add(oneOfNeeded(s.Type, at.Child("type"), flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited))
	}
	f.add(validateFixedLevel(l, at))
	f.add(validatePriorityLevelStatus(&l.Status))
	return f.list
}

// validateFixedLevel holds the two levels that must be there to their specs.
func validateFixedLevel(l *flowcontrolv1.PriorityLevelConfiguration, at *field.Path) field.ErrorList {
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name != l.Name {
			continue
		}
		fixed = fixed.DeepCopy()
		defaultPriorityLevel(fixed)
		rule := "spec of '%s' must equal the fixed value"
		if l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			fixed.Spec.Exempt = l.Spec.Exempt
			rule = "spec of '%s' except the 'spec.exempt' field must equal the fixed value"
		}
		if !same(l.Spec, fixed.Spec) {
			return field.ErrorList{field.Invalid(at, l.Spec, fmt.Sprintf(rule, l.Name))}
		}
	}
	return nil
}

func (f *faults) shares(nominal, lendable *int32, at *field.Path) {
	if nominal != nil && *nominal < 0 {
		f.invalid(at.Child("nominalConcurrencyShares"), *nominal, "must be a non-negative integer")
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		f.invalid(at.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive")
	}
}

func validateLimitedLevel(m *flowcontrolv1.LimitedPriorityLevelConfiguration, at *field.Path) field.ErrorList {
	var f faults
	f.shares(m.NominalConcurrencyShares, m.LendablePercent, at)
	if p := m.BorrowingLimitPercent; p != nil && *p < 0 {
		f.invalid(at.Child("borrowingLimitPercent"), *p, "if specified, must be a non-negative integer")
	}
	at = at.Child("limitResponse")
	queuing := m.LimitResponse.Queuing
	switch m.LimitResponse.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		if queuing != nil {
			f.forbidden(at.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited")
		}
	case flowcontrolv1.LimitResponseTypeQueue:
		if queuing == nil {
			f.required(at.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited")
		} else {
			f.add(validateQueuing(queuing, at.Child("queuing")))
		}
	default:
		f.add(oneOfNeeded(m.LimitResponse.Type, at.Child("type"), flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject))
	}
	return f.list
}

const mostQueues = 10_000_000

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, at *field.Path) field.ErrorList {
	var f faults
	if q.QueueLengthLimit <= 0 {
		f.invalid(at.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive")
	}
	if q.Queues <= 0 {
		f.invalid(at.Child("queues"), q.Queues, "must be positive")
	} else if q.Queues > mostQueues {
		f.invalid(at.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", mostQueues))
	}
	hand := at.Child("handSize")
	if q.HandSize <= 0 {
		f.invalid(hand, q.HandSize, "must be positive")
	} else if q.HandSize > q.Queues {
		f.invalid(hand, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues))
	} else if bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); bits > shufflesharding.MaxHashBits {
		f.invalid(hand, q.HandSize, fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d", q.Queues, q.HandSize, shufflesharding.MaxHashBits))
	}
	return f.list
}
