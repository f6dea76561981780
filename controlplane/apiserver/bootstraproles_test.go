package apiserver

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
)

// TestRolesOfOlderClusters: they get what this version adds, and lose nothing.
func TestRolesOfOlderClusters(t *testing.T) {
	rule := func(resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: resources, Verbs: []string{"list"}}
	}
	role := func(auto string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: rules}
		if auto != "" {
			r.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: auto}
		}
		return r
	}
	binding := func(names ...string) *rbacv1.RoleBinding {
		b := &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"}}
		for _, n := range names {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: "User", Name: n})
		}
		return b
	}
	aggregated := role("", rule("pods"))
	aggregated.AggregationRule = &rbacv1.AggregationRule{}
	for name, c := range map[string]struct {
		have, want registry.Object
		rules      int // afterwards, or subjects; 0: nothing is written
	}{
		"the same":           {role("", rule("pods")), role("", rule("pods")), 0},
		"one is missing":     {role("", rule("nodes")), role("", rule("nodes", "pods")), 2},
		"more than wanted":   {role("true", rule("nodes", "pods")), role("", rule("nodes")), 0},
		"its owner's":        {role("false", rule("nodes")), role("", rule("pods")), 0},
		"aggregated":         {aggregated, role("", rule("nodes")), 0},
		"subjects":           {binding("a", "mine"), binding("a", "b"), 3},
		"another role bound": {&rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "x"}}, binding("a"), 0},
	} {
		n := 0
		switch o := withMissing(c.have, c.want).(type) {
		case *rbacv1.ClusterRole:
			n = len(o.Rules)
		case *rbacv1.RoleBinding:
			n = len(o.Subjects)
		}
		if n != c.rules {
			t.Errorf("%s: %d, want %d", name, n, c.rules)
		}
	}
}
