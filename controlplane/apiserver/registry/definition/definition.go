// Package definition says what is wrong with a CustomResourceDefinition, in
// upstream's words. It reads the new and the old definition and writes nothing.
package definition

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// internal is a definition in the form that upstream's rules and paths are
// about: what all versions share stands at the top.
func internal(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensions.CustomResourceDefinition, error) {
	out := &apiextensions.CustomResourceDefinition{}
	return out, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, out, nil)
}

// Validate checks a definition; old is nil on creation.
func Validate(ctx context.Context, crd, old *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	now, err := internal(crd)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	c := &checker{ctx: ctx}
	if old == nil {
		c.strict()
		c.spec(&now.Spec, field.NewPath("spec"))
		c.rest(now, nil)
		return c.faults
	}
	before, err := internal(old)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	c.lenient(now, before)
	path := field.NewPath("spec")
	c.spec(&now.Spec, path)
	if established(before) {
		// Where and as what objects are stored follows from these.
		c.unchanged(now.Spec.Scope, before.Spec.Scope, path.Child("scope"))
		c.unchanged(now.Spec.Names.Kind, before.Spec.Names.Kind, path.Child("names", "kind"))
	}
	c.unchanged(now.Spec.Group, before.Spec.Group, path.Child("group"))
	c.unchanged(now.Spec.Names.Plural, before.Spec.Names.Plural, path.Child("names", "plural"))
	c.rest(now, before)
	return c.faults
}

// ValidateStatus checks a write of the status.
func ValidateStatus(crd *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	now, err := internal(crd)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	c := &checker{}
	c.names(&now.Status.AcceptedNames, field.NewPath("status", "acceptedNames"))
	return c.faults
}

// rest is what is checked besides the specification.
func (c *checker) rest(crd, old *apiextensions.CustomResourceDefinition) {
	c.names(&crd.Status.AcceptedNames, field.NewPath("status", "acceptedNames"))
	c.storedVersions(crd)
	c.approval(crd, old)
	if keep := crd.Spec.PreserveUnknownFields; keep != nil && *keep && (old == nil || old.Spec.PreserveUnknownFields == nil || !*old.Spec.PreserveUnknownFields) {
		c.invalid(field.NewPath("spec", "preserveUnknownFields"), keep,
			"cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead")
	}
}

// storedVersions must name every version that objects may be stored in.
func (c *checker) storedVersions(crd *apiextensions.CustomResourceDefinition) {
	at, stored := field.NewPath("status", "storedVersions"), crd.Status.StoredVersions
	if len(stored) == 0 {
		c.invalid(at, stored, "must have at least one stored version")
		return
	}
	left := map[string]int{}
	for i, name := range stored {
		left[name] = i
	}
	for _, v := range crd.Spec.Versions {
		if _, ok := left[v.Name]; v.Storage && !ok {
			c.invalid(at, stored, "must have the storage version "+v.Name)
		}
		delete(left, v.Name)
	}
	for i, name := range stored {
		if k, ok := left[name]; ok && k == i {
			c.invalid(at.Index(i), name, "missing from spec.versions; "+name+" was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in "+name+" and removes "+name+" from status.storedVersions")
		}
	}
}

// approval is needed for groups of the community.
func (c *checker) approval(crd, old *apiextensions.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	if old != nil {
		if was, _ := apihelpers.GetAPIApprovalState(old.Annotations); was == state {
			return
		}
	}
	const annotation = apiextensionsv1.KubeAPIApprovedAnnotation
	at := field.NewPath("metadata", "annotations").Key(annotation)
	switch state {
	case apihelpers.APIApproved, apihelpers.APIApprovalBypassed:
	case apihelpers.APIApprovalMissing:
		c.required(at, reason)
	default:
		c.invalid(at, crd.Annotations[annotation], reason)
	}
}
