package fairness

import (
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

// A schema is a FlowSchema whose level exists.
type schema struct {
	name  string
	uid   []string
	rules []flowcontrolv1.PolicyRulesWithSubjects
	by    flowcontrolv1.FlowDistinguisherMethodType
	level *level
	tally *tally
}

func (s *schema) matches(who user.Info, info *request.Info) bool {
	for i := range s.rules {
		r := &s.rules[i]
		if !anySubject(r.Subjects, who) {
			continue
		}
		if info.IsResource && anyResource(r.ResourceRules, info) || !info.IsResource && anyPath(r.NonResourceRules, info) {
			return true
		}
	}
	return false
}

func anySubject(subjects []flowcontrolv1.Subject, who user.Info) bool {
	for i := range subjects {
		switch s := &subjects[i]; {
		case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil:
			if s.User.Name == flowcontrolv1.NameAll || s.User.Name == who.GetName() {
				return true
			}
		case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil:
			if s.Group.Name == flowcontrolv1.NameAll || slices.Contains(who.GetGroups(), s.Group.Name) {
				return true
			}
		case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil:
			if isServiceAccount(s.ServiceAccount, who.GetName()) {
				return true
			}
		}
	}
	return false
}

func isServiceAccount(s *flowcontrolv1.ServiceAccountSubject, name string) bool {
	if s.Name != flowcontrolv1.NameAll {
		return serviceaccount.MatchesUsername(s.Namespace, s.Name, name)
	}
	name, ok := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix)
	if !ok {
		return false
	}
	name, ok = strings.CutPrefix(name, s.Namespace)
	return ok && strings.HasPrefix(name, serviceaccount.ServiceAccountUsernameSeparator)
}

// names says that a list has value, or is for all.
func names(list []string, value string) bool {
	return len(list) == 1 && list[0] == "*" || slices.Contains(list, value)
}

func anyResource(rules []flowcontrolv1.ResourcePolicyRule, info *request.Info) bool {
	for i := range rules {
		r := &rules[i]
		if !names(r.Verbs, info.Verb) || !names(r.APIGroups, info.Group) || !namesResource(r.Resources, info) {
			continue
		}
		if info.Namespace == "" && r.ClusterScope || info.Namespace != "" && names(r.Namespaces, info.Namespace) {
			return true
		}
	}
	return false
}

func namesResource(list []string, info *request.Info) bool {
	if info.Subresource == "" {
		return names(list, info.Resource)
	}
	for _, name := range list {
		resource, sub, _ := strings.Cut(name, "/")
		if resource == info.Resource && sub == info.Subresource {
			return true
		}
	}
	return len(list) == 1 && list[0] == "*"
}

func anyPath(rules []flowcontrolv1.NonResourcePolicyRule, info *request.Info) bool {
	for i := range rules {
		if !names(rules[i].Verbs, info.Verb) {
			continue
		}
		for _, path := range rules[i].NonResourceURLs {
			if path == "*" || path == info.Path || strings.HasPrefix(info.Path, strings.TrimSuffix(strings.TrimSuffix(path, "*"), "/")+"/") {
				return true
			}
		}
	}
	return false
}
