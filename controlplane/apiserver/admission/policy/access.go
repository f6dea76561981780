package policy

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/watchcache"
)

// Access keeps users from reading through parameters what they may not read:
// whoever writes a policy or binding must be allowed to read what it refers to.
type Access struct {
	cache *watchcache.Cache
	authz authz.Authorizer
}

// NewAccess makes the plugin; it starts nothing.
func NewAccess(c Config) *Access { return &Access{c.Cache, c.Authorizer} }

func (*Access) Name() string { return "PolicyParameterAccess" }

// Validate checks the writes of policies and bindings.
func (x *Access) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Kind.Group != admissionv1.GroupName || a.Subresource != "" || a.Operation != admission.Create && a.Operation != admission.Update ||
		a.User == nil || slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	at, err := "paramKind", error(nil)
	if kind := paramKind(a.Object); kind != nil {
		if !equality.Semantic.DeepEqual(kind, paramKind(a.Old)) {
			err = x.mayReadKind(ctx, a, kind)
		}
	} else if policy, ref := paramRef(a.Object); ref != nil {
		at = "paramRef"
		if oldPolicy, old := paramRef(a.Old); policy != oldPolicy || !equality.Semantic.DeepEqual(ref, old) {
			err = x.mayRead(ctx, a, policy, ref)
		}
	}
	if err == nil {
		return nil
	}
	return apierrors.NewInvalid(a.Kind.GroupKind(), a.Name, field.ErrorList{field.Forbidden(field.NewPath("spec", at), err.Error())})
}

func paramKind(o runtime.Object) *admissionv1.ParamKind {
	switch p := o.(type) {
	case *validatingPolicy:
		return p.Spec.ParamKind
	case *mutatingPolicy:
		return p.Spec.ParamKind
	}
	return nil
}

func paramRef(o runtime.Object) (policy string, ref *admissionv1.ParamRef) {
	switch b := o.(type) {
	case *validatingBinding:
		return b.Spec.PolicyName, b.Spec.ParamRef
	case *mutatingBinding:
		return b.Spec.PolicyName, b.Spec.ParamRef
	}
	return "", nil
}

// resolve is what must be read for a kind; everything, where that cannot be determined.
func resolve(a *admission.Attributes, kind *admissionv1.ParamKind) (r schema.GroupVersionResource, parse, served error) {
	r = schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	gv, parse := schema.ParseGroupVersion(kind.APIVersion)
	if parse != nil {
		return r, parse, nil
	}
	r.Group, r.Version = gv.Group, gv.Version
	stored := a.Served.Stored(gv.WithKind(kind.Kind))
	if stored == nil {
		return r, nil, fmt.Errorf("no matches for kind %q", kind.Kind)
	}
	return stored.Resource(), nil, nil
}

func (x *Access) ask(ctx context.Context, a *admission.Attributes, verb string, r schema.GroupVersionResource, namespace, name string) bool {
	ok, _ := authz.Allows(ctx, x.authz, &authz.Attributes{User: a.User, Verb: verb, Group: r.Group, Version: r.Version, Resource: r.Resource,
		Namespace: namespace, Name: name, IsResource: true})
	return ok
}

func (x *Access) mayReadKind(ctx context.Context, a *admission.Attributes, kind *admissionv1.ParamKind) error {
	r, _, _ := resolve(a, kind)
	if x.ask(ctx, a, "get", r, "*", "*") {
		return nil
	}
	return fmt.Errorf(`user %v must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`, a.User, kind.Kind, kind.APIVersion)
}

func (x *Access) mayRead(ctx context.Context, a *admission.Attributes, policy string, ref *admissionv1.ParamRef) error {
	verb := "get"
	if ref.Name == "" {
		verb = "list"
	}
	r := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	resource := "validatingadmissionpolicies"
	if a.Kind.Kind == "MutatingAdmissionPolicyBinding" {
		resource = "mutatingadmissionpolicies"
	}
	rec := x.cache.Resource(admissionv1.SchemeGroupVersion.WithResource(resource)).Peek(policy)
	var parse, served error
	var kind *admissionv1.ParamKind
	if rec != nil {
		if obj, err := rec.Object(); err == nil {
			kind = paramKind(obj)
		}
	}
	if kind != nil {
		r, parse, served = resolve(a, kind)
	}
	switch {
	case x.ask(ctx, a, verb, r, ref.Namespace, ref.Name):
		return nil
	case rec == nil:
		return fmt.Errorf(`unable to get policy %s to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, policy, a.User, verb)
	case parse != nil:
		return fmt.Errorf(`unable to parse paramKind %v to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, kind, a.User, verb)
	case served != nil:
		return fmt.Errorf(`unable to resolve paramKind %v to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, kind, a.User, verb)
	}
	return fmt.Errorf(`user %v does not have "%v" permission on the object referenced by paramRef`, a.User, verb)
}
