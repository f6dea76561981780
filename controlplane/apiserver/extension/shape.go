package extension

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// A shape is the compiled schema of one version.
type shape struct {
	structural *schema.Structural // nil: objects of any form
	keep       bool               // unknown fields stay
	whole      validation.SchemaValidator
	status     validation.SchemaValidator
	rules      *cel.Validator // nil when there are none
	tree       *ruleNode      // the same
	kept       *keptRules
}

func (d *definition) compile(version string) (*shape, error) {
	props, err := d.schemaOf(version)
	if err != nil {
		return nil, err
	}
	s := &shape{keep: d.crd.Spec.PreserveUnknownFields, kept: d.kept}
	if s.whole, _, err = validation.NewSchemaValidator(props); err != nil {
		return nil, fmt.Errorf("schema of %s %s: %w", d.crd.Name, version, err)
	}
	if props == nil {
		return s, nil
	}
	if status, ok := props.Properties["status"]; ok {
		if s.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			return nil, fmt.Errorf("schema of %s %s: %w", d.crd.Name, version, err)
		}
	}
	if s.structural, err = structuralOf(props); err != nil {
		if s.keep {
			s.structural = nil // an old definition that prunes nothing
			return s, nil
		}
		return nil, fmt.Errorf("schema of %s %s: %w", d.crd.Name, version, err)
	}
	if hasRules(s.structural) {
		s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
		s.tree = newRuleNode(s.rules)
	}
	return s, nil
}

// structuralOf is the structural form of a schema, with its defaults pruned.
func structuralOf(props *apiextensions.JSONSchemaProps) (*schema.Structural, error) {
	ss, err := schema.NewStructural(props)
	if err != nil {
		return nil, err
	}
	ss = ss.DeepCopy() // the defaults are shared with the definition
	return ss, defaulting.PruneDefaults(ss)
}

// hasRules reports whether any part of a schema has rules: compiling none costs,
// too.
func hasRules(s *schema.Structural) bool {
	found := false
	v := schema.Visitor{
		Structural: func(s *schema.Structural) bool {
			found = found || len(s.XValidations) > 0
			return false
		},
		NestedValueValidation: func(v *schema.NestedValueValidation) bool {
			found = found || len(v.ValidationExtensions.XValidations) > 0
			return false
		},
	}
	v.Visit(s)
	return found
}

// coercion is how strict coerce is.
type coercion struct {
	stored bool // the object comes from the store: what is wrong with its metadata is dropped
	wanted bool // unknown fields are to be named
}

// coerce does what decoding does for Go types: it drops unknown fields and
// checks the metadata of the object and of those embedded in it.
func (s *shape) coerce(u *unstructured.Unstructured, how coercion) (unknown []string, err error) {
	kind, hasKind, err := unstructured.NestedString(u.Object, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(u.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields: how.stored, ReturnUnknownFieldPaths: how.wanted})
	if err != nil {
		return nil, err
	}
	if !s.keep {
		unknown = append(unknown, pruning.PruneWithOptions(u.Object, s.structural, true,
			schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: how.wanted})...)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s.structural)
	}
	ferr, more := objectmeta.CoerceWithOptions(nil, u.Object, s.structural, false, objectmeta.CoerceOptions{
		DropInvalidFields: how.stored, ReturnUnknownFieldPaths: how.wanted})
	if ferr != nil {
		return nil, ferr
	}
	if how.stored && meta.Generation == 0 {
		meta.Generation = 1 // very old objects have none
	}
	if hasKind {
		u.SetKind(kind)
	}
	if hasVersion {
		u.SetAPIVersion(apiVersion)
	}
	if hasMeta {
		if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
			return nil, err
		}
	}
	return append(unknown, more...), nil
}

func (s *shape) setDefaults(u *unstructured.Unstructured) {
	if s.structural != nil {
		defaulting.Default(u.Object, s.structural)
	}
}
