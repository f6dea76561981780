package extension

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/equality"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rules "knarr/controlplane/apiserver/registry/definition"
)

type (
	customResourceDefinition = apiextensionsv1.CustomResourceDefinition
	names                    = apiextensionsv1.CustomResourceDefinitionNames
	condition                = apiextensionsv1.CustomResourceDefinitionCondition
)

func sameNames(a, b names) bool { return equality.Semantic.DeepEqual(a, b) }

// A statusUpdate is what the status of a definition should say.
type statusUpdate struct {
	names      names
	conditions []condition
}

// computeStatus decides which names crd gets, given those that others of its group
// have, and what follows.
func computeStatus(crd *customResourceDefinition, others []names) statusUpdate {
	v := statusUpdate{names: crd.Status.AcceptedNames}
	accepted := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted)
	if accepted == nil || !sameNames(crd.Spec.Names, crd.Status.AcceptedNames) {
		accepted = v.accept(crd.Spec.Names, others)
		v.conditions = append(v.conditions, *accepted)
	}
	if e := establish(crd, accepted.Status == apiextensionsv1.ConditionTrue); e != nil {
		v.conditions = append(v.conditions, *e)
	}
	if c := structureOf(crd); c != nil {
		v.conditions = append(v.conditions, *c)
	}
	if c := approvalOf(crd); c != nil {
		v.conditions = append(v.conditions, *c)
	}
	return v
}

// accept takes the names that no other definition has. The condition names the last
// conflict.
func (v *statusUpdate) accept(want names, others []names) *condition {
	resources, kinds := sets.New[string](), sets.New[string]()
	for _, o := range others {
		resources.Insert(o.Plural, o.Singular).Insert(o.ShortNames...)
		kinds.Insert(o.Kind, o.ListKind)
	}
	c := &condition{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found"}
	refuse := func(what string, err error) {
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionFalse, what+"Conflict", err.Error()
	}
	taken := func(name string, in sets.Set[string]) error {
		if in.Has(name) {
			return fmt.Errorf("%q is already in use", name)
		}
		return nil
	}
	one := func(what, want string, have *string, in sets.Set[string]) {
		if want == *have {
			return
		}
		if err := taken(want, in); err != nil {
			refuse(what, err)
			return
		}
		*have = want
	}
	one("Plural", want.Plural, &v.names.Plural, resources)
	one("Singular", want.Singular, &v.names.Singular, resources)
	if !reflect.DeepEqual(want.ShortNames, v.names.ShortNames) {
		var errs []error
		for _, s := range want.ShortNames {
			if !slices.Contains(v.names.ShortNames, s) {
				errs = append(errs, taken(s, resources))
			}
		}
		if err := utilerrors.NewAggregate(errs); err != nil {
			refuse("ShortNames", err)
		} else {
			v.names.ShortNames = want.ShortNames
		}
	}
	one("Kind", want.Kind, &v.names.Kind, kinds)
	one("ListKind", want.ListKind, &v.names.ListKind, kinds)
	v.names.Categories = want.Categories
	return c
}

// establish: once a definition is served it stays so; nil when there is nothing
// to say.
func establish(crd *customResourceDefinition, accepted bool) *condition {
	c := &condition{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse}
	switch w := webhookOf(crd); {
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return nil
	case !accepted:
		c.Reason, c.Message = "NotAccepted", "not all names are accepted"
	case w != nil && rules.BundleFault(w.ClientConfig.CABundle) != nil:
		c.Reason, c.Message = "InvalidCABundle", "The conversion webhook CABundle is invalid"
	default:
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionTrue, "InitialNamesAccepted", "the initial names have been accepted"
	}
	return c
}

// structureOf is the condition of old definitions whose schemas are not structural. New
// ones are refused, so that only old ones, which keep unknown fields, are looked at.
func structureOf(crd *customResourceDefinition) *condition {
	if !crd.Spec.PreserveUnknownFields {
		return nil
	}
	c := &condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionUnknown}
	errs := field.ErrorList{field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false")}
	for i, v := range crd.Spec.Versions {
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		props := &apiextensions.JSONSchemaProps{}
		if apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, props, nil) != nil {
			continue
		}
		s, err := schema.NewStructural(props)
		if err != nil {
			c.Reason, c.Message = "StructuralError", fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name, err)
			return c
		}
		errs = append(errs, schema.ValidateStructural(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), s)...)
	}
	c.Status, c.Reason, c.Message = apiextensionsv1.ConditionTrue, "Violations", errs.ToAggregate().Error()
	return c
}

// approvalOf reports whether a definition in a group of the community was
// approved by it.
func approvalOf(crd *customResourceDefinition) *condition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	c := &condition{Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse, Message: reason}
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return c
}

// matchesStatus says that the status says so already.
func (v statusUpdate) matchesStatus(crd *customResourceDefinition) bool {
	if !sameNames(v.names, crd.Status.AcceptedNames) {
		return false
	}
	for i := range v.conditions {
		c := &v.conditions[i]
		old := apihelpers.FindCRDCondition(crd, c.Type)
		if old == nil || old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message {
			return false
		}
	}
	return crd.Spec.PreserveUnknownFields || apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema) == nil
}

// writeStatus writes the verdict into the status.
func (v statusUpdate) writeStatus(crd *customResourceDefinition) {
	crd.Status.AcceptedNames = *v.names.DeepCopy()
	for _, c := range v.conditions {
		apihelpers.SetCRDCondition(crd, c)
	}
	if !crd.Spec.PreserveUnknownFields {
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.NonStructuralSchema)
	}
}
