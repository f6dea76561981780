package apiserver

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	"knarr/controlplane/apiserver/registry"
)

// withMissing is a role or binding of an older cluster with the rules or subjects
// that this version wants besides; nil: it has them all, or its autoupdate
// annotation says that it is its owner's. Nothing is taken away. Pure.
func withMissing(have, want registry.Object) registry.Object {
	if have.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return nil
	}
	have = have.DeepCopyObject().(registry.Object)
	var changed bool
	switch w := want.(type) {
	case *rbacv1.ClusterRole:
		if h := have.(*rbacv1.ClusterRole); h.AggregationRule == nil && w.AggregationRule == nil {
			h.Rules, changed = addRules(h.Rules, w.Rules)
		}
	case *rbacv1.Role:
		h := have.(*rbacv1.Role)
		h.Rules, changed = addRules(h.Rules, w.Rules)
	case *rbacv1.ClusterRoleBinding:
		if h := have.(*rbacv1.ClusterRoleBinding); h.RoleRef == w.RoleRef {
			h.Subjects, changed = addSubjects(h.Subjects, w.Subjects)
		}
	case *rbacv1.RoleBinding:
		if h := have.(*rbacv1.RoleBinding); h.RoleRef == w.RoleRef {
			h.Subjects, changed = addSubjects(h.Subjects, w.Subjects)
		}
	}
	if !changed {
		return nil
	}
	return have
}

func addRules(have, want []rbacv1.PolicyRule) (all []rbacv1.PolicyRule, changed bool) {
	_, missing := validation.Covers(have, want)
	return append(have, missing...), len(missing) > 0
}

func addSubjects(have, want []rbacv1.Subject) (all []rbacv1.Subject, changed bool) {
	for _, s := range want {
		if !slices.Contains(have, s) {
			have, changed = append(have, s), true
		}
	}
	return have, changed
}
