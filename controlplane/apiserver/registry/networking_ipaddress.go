package registry

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"strings"
)

var ipAddresses = &Kind[*networkingv1.IPAddress]{
	GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("IPAddress"),
	Plural:           "ipaddresses",
	RecheckName:      true,
	Short:            []string{"ip"},
	Cluster:          true,
	NameRule: func(name string, _ bool) (msgs []string) {
		for _, err := range utilvalidation.IsValidIP(field.NewPath(""), name) {
			msgs = append(msgs, err.Detail)
		}
		return msgs
	},

	Validate: validateIPAddress,
	Columns: []Column[*networkingv1.IPAddress]{
		nameColumn[*networkingv1.IPAddress](),
		column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"], 0, func(a *networkingv1.IPAddress) any {
			ref := a.Spec.ParentRef
			if ref == nil {
				return "<none>"
			}
			name := strings.ToLower(schema.GroupResource{Group: ref.Group, Resource: ref.Resource}.String())
			if ref.Namespace != "" {
				name += "/" + ref.Namespace
			}
			return name + "/" + ref.Name
		}),
		{Cell: ageColumn[*networkingv1.IPAddress]().Cell},
	},
}

func validateIPAddress(_ context.Context, a, old *networkingv1.IPAddress) (errs field.ErrorList) {
	at := field.NewPath("spec", "parentRef")
	if old != nil {
		errs = unchanged(a.Spec.ParentRef, old.Spec.ParentRef, at)
	}
	ref := a.Spec.ParentRef
	if ref == nil {
		return append(errs, field.Required(at, ""))
	}
	if ref.Group != "" {
		errs = append(errs, dnsSubdomain(ref.Group, at.Child("group"))...)
	}
	for _, part := range []struct{ name, value string }{{"resource", ref.Resource}, {"name", ref.Name}} {
		if part.value == "" {
			errs = append(errs, field.Required(at.Child(part.name), ""))
		} else {
			errs = append(errs, invalid(NameIsPathSegment(part.value, false), part.value, at.Child(part.name))...)
		}
	}
	if ref.Namespace != "" {
		errs = append(errs, invalid(NameIsPathSegment(ref.Namespace, false), ref.Namespace, at.Child("namespace"))...)
	}
	return errs
}
