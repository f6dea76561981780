package plugin

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
)

// ownerReferencesPermissionEnforcement lets only those give an object an owner
// who may delete it, and only those let it hold up its owner's deletion who may
// set that owner's finalizers.
type ownerReferencesPermissionEnforcement struct{ authorizer authz.Authorizer }

func (*ownerReferencesPermissionEnforcement) Name() string {
	return "OwnerReferencesPermissionEnforcement"
}

func (p *ownerReferencesPermissionEnforcement) Validate(ctx context.Context, a *admission.Attributes) error {
	// The status of a pod keeps its owners, whatever old kubelets send.
	if a.Operation != admission.Create && a.Operation != admission.Update || is(a, "pods", "status") {
		return nil
	}
	var refs, had []metav1.OwnerReference
	if o, ok := a.Object.(metav1.Object); ok {
		refs = o.GetOwnerReferences()
	}
	if o, ok := a.Old.(metav1.Object); ok {
		had = o.GetOwnerReferences()
	}
	if len(refs) == len(had) && (len(refs) == 0 || apiequality.Semantic.DeepEqual(refs, had)) {
		return nil
	}
	if a.Operation != admission.Create { // who creates could as well not have
		ok, reason := authz.Allows(ctx, p.authorizer, &authz.Attributes{
			User: a.User, Verb: "delete", Namespace: a.Namespace, Group: a.Resource.Group, Version: a.Resource.Version,
			Resource: a.Resource.Resource, Subresource: a.Subresource, Name: a.Name, IsResource: true,
		})
		if !ok {
			return forbidden(a, fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %v", reason, error(nil)))
		}
	}
	blocking := newlyBlocking(refs, had)
	if len(blocking) == 0 {
		return nil
	}
	if ok, _ := authz.Allows(ctx, p.authorizer, finalizers(a, schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}, "*", "")); ok {
		return nil
	}
	for _, ref := range blocking {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		owner := a.Served.Stored(gv.WithKind(ref.Kind))
		if err == nil && owner == nil {
			err = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, SearchedVersions: []string{gv.Version}}
		}
		if err != nil {
			return forbidden(a, fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %w", ref.APIVersion, ref.Kind, err))
		}
		namespace := ""
		if owner.Namespaced() {
			namespace = a.Namespace
		}
		if ok, reason := authz.Allows(ctx, p.authorizer, finalizers(a, owner.Resource(), ref.Name, namespace)); !ok {
			return forbidden(a, fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, error(nil)))
		}
	}
	return nil
}

// finalizers asks for the right to set an owner's.
func finalizers(a *admission.Attributes, of schema.GroupVersionResource, name, namespace string) *authz.Attributes {
	return &authz.Attributes{
		User: a.User, Verb: "update", Namespace: namespace, Group: of.Group, Version: of.Version,
		Resource: of.Resource, Subresource: "finalizers", Name: name, IsResource: true,
	}
}

// newlyBlocking are the references that hold up their owner's deletion and did
// not before.
func newlyBlocking(refs, had []metav1.OwnerReference) (out []metav1.OwnerReference) {
	blocks := func(r metav1.OwnerReference) bool { return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion }
	before := map[string]bool{}
	for _, r := range had {
		before[string(r.UID)] = blocks(r)
	}
	for _, r := range refs {
		if blocks(r) && !before[string(r.UID)] {
			out = append(out, r)
		}
	}
	return out
}
