package registry

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1" // its texts describe the columns
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var clusterRoleBindings = &Kind[*rbacv1.ClusterRoleBinding]{
	GroupVersionKind: rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
	Plural:           "clusterrolebindings",
	Cluster:          true,
	NameRule:         NameIsPathSegment,
	CreateOnUpdate:   true,

	Default: func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
	Validate: func(_ context.Context, b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
		errs := validateBinding(b.RoleRef, b.Subjects, false)
		if old != nil && old.RoleRef != b.RoleRef {
			errs = append(errs, field.Invalid(field.NewPath("roleRef"), b.RoleRef, "cannot change roleRef"))
		}
		return errs
	},
	Columns: bindingColumns(rbacv1beta1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"], "clusterRoleBinding",
		func(b *rbacv1.ClusterRoleBinding) (rbacv1.RoleRef, []rbacv1.Subject) { return b.RoleRef, b.Subjects }),
}
