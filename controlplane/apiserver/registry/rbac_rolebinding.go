package registry

import (
	"context"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1" // its texts describe the columns
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var roleBindings = &Kind[*rbacv1.RoleBinding]{
	GroupVersionKind: rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
	Plural:           "rolebindings",
	NameRule:         NameIsPathSegment,
	CreateOnUpdate:   true,

	Default: func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
	Validate: func(_ context.Context, b, old *rbacv1.RoleBinding) field.ErrorList {
		errs := validateBinding(b.RoleRef, b.Subjects, true)
		if old != nil && old.RoleRef != b.RoleRef {
			errs = append(errs, field.Invalid(field.NewPath("roleRef"), b.RoleRef, "cannot change roleRef"))
		}
		return errs
	},
	Columns: bindingColumns(rbacv1beta1.RoleBinding{}.SwaggerDoc()["roleRef"], "roleBinding",
		func(b *rbacv1.RoleBinding) (rbacv1.RoleRef, []rbacv1.Subject) { return b.RoleRef, b.Subjects }),
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	fill(&ref.APIGroup, rbacv1.GroupName)
	for i := range subjects {
		if s := &subjects[i]; s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind {
			fill(&s.APIGroup, rbacv1.GroupName)
		}
	}
}

// bindingColumns are shared by both kinds of binding.
func bindingColumns[T Object](doc, what string, parts func(T) (rbacv1.RoleRef, []rbacv1.Subject)) []Column[T] {
	who := func(kind, label string) Column[T] {
		return column(label, "string", label+" in the "+what, 1, func(b T) any {
			_, subjects := parts(b)
			var all []string
			for _, s := range subjects {
				switch {
				case s.Kind != kind:
				case kind == rbacv1.ServiceAccountKind:
					all = append(all, s.Namespace+"/"+s.Name)
				default:
					all = append(all, s.Name)
				}
			}
			return strings.Join(all, ", ")
		})
	}
	return []Column[T]{
		nameColumn[T](),
		column("Role", "string", doc, 0, func(b T) any {
			ref, _ := parts(b)
			return fmt.Sprintf("%s/%s", ref.Kind, ref.Name)
		}),
		ageColumn[T](),
		who(rbacv1.UserKind, "Users"),
		who(rbacv1.GroupKind, "Groups"),
		who(rbacv1.ServiceAccountKind, "ServiceAccounts"),
	}
}

// validateBinding checks role and subjects. A role binding may name a role or
// a cluster role, a cluster role binding only the latter.
func validateBinding(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool) (errs field.ErrorList) {
	at := field.NewPath("roleRef")
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	if ref.Kind != "ClusterRole" && !(namespaced && ref.Kind == "Role") {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		errs = append(errs, invalid(NameIsPathSegment(ref.Name, false), ref.Name, at.Child("name"))...)
	}
	for i := range subjects {
		errs = append(errs, validateSubject(&subjects[i], namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateSubject(s *rbacv1.Subject, namespaced bool, at *field.Path) (errs field.ErrorList) {
	if s.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	group := func(want string) {
		if s.APIGroup != want {
			errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{want}))
		}
	}
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			errs = append(errs, invalid(NameIsDNSSubdomain(s.Name, false), s.Name, at.Child("name"))...)
		}
		group("")
		if !namespaced && s.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		group(rbacv1.GroupName)
	default:
		errs = append(errs, field.NotSupported(at.Child("kind"), s.Kind,
			[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}
