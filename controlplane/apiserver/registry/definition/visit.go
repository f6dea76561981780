package definition

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/sets"
)

var schemaTypes = sets.New("string", "number", "integer", "boolean", "array", "object")

// roots are a definition's schemas.
func roots(spec *apiextensions.CustomResourceDefinitionSpec) (out []*apiextensions.JSONSchemaProps) {
	if v := spec.Validation; v != nil && v.OpenAPIV3Schema != nil {
		out = append(out, v.OpenAPIV3Schema)
	}
	for i := range spec.Versions {
		if s := spec.Versions[i].Schema; s != nil && s.OpenAPIV3Schema != nil {
			out = append(out, s.OpenAPIV3Schema)
		}
	}
	return out
}

func everySchema(spec *apiextensions.CustomResourceDefinitionSpec) bool {
	if v := spec.Validation; v != nil && v.OpenAPIV3Schema != nil {
		return true
	}
	return len(roots(spec)) == len(spec.Versions)
}

func anyRoot(spec *apiextensions.CustomResourceDefinitionSpec, is func(*apiextensions.JSONSchemaProps) bool) bool {
	for _, s := range roots(spec) {
		if is(s) {
			return true
		}
	}
	return false
}

// anySchema reports whether any part of any schema is such.
func anySchema(spec *apiextensions.CustomResourceDefinitionSpec, is func(*apiextensions.JSONSchemaProps) bool) bool {
	return anyRoot(spec, func(s *apiextensions.JSONSchemaProps) bool { return within(s, is) })
}

// within reports whether s or any part of it is such.
func within(s *apiextensions.JSONSchemaProps, is func(*apiextensions.JSONSchemaProps) bool) bool {
	if s == nil {
		return false
	}
	if is(s) {
		return true
	}
	found := false
	parts(s, func(p *apiextensions.JSONSchemaProps) { found = found || within(p, is) })
	return found
}

// parts calls visit for the schemas directly in s.
func parts(s *apiextensions.JSONSchemaProps, visit func(*apiextensions.JSONSchemaProps)) {
	one := func(p *apiextensions.JSONSchemaProps) {
		if p != nil {
			visit(p)
		}
	}
	list := func(l []apiextensions.JSONSchemaProps) {
		for i := range l {
			visit(&l[i])
		}
	}
	table := func(m map[string]apiextensions.JSONSchemaProps) {
		for _, p := range m {
			visit(&p)
		}
	}
	if s.Items != nil {
		one(s.Items.Schema)
		list(s.Items.JSONSchemas)
	}
	list(s.AllOf)
	list(s.AnyOf)
	list(s.OneOf)
	one(s.Not)
	table(s.Properties)
	table(s.PatternProperties)
	table(s.Definitions)
	if s.AdditionalProperties != nil {
		one(s.AdditionalProperties.Schema)
	}
	if s.AdditionalItems != nil {
		one(s.AdditionalItems.Schema)
	}
	for _, d := range s.Dependencies {
		one(d.Schema)
	}
}

func hasDefault(s *apiextensions.JSONSchemaProps) bool { return s.Default != nil }

// hasExtension says that s uses what only structural schemas may.
func hasExtension(s *apiextensions.JSONSchemaProps) bool {
	return s.XEmbeddedResource || s.XPreserveUnknownFields != nil || s.XIntOrString ||
		len(s.XListMapKeys) > 0 || s.XListType != nil || len(s.XValidations) > 0
}

// granularSet is a set whose items are not compared as a whole.
func granularSet(s *apiextensions.JSONSchemaProps) bool {
	if s.XListType == nil || *s.XListType != "set" || s.Items == nil || s.Items.Schema == nil {
		return false
	}
	switch item := s.Items.Schema; item.Type {
	case "array":
		return item.XListType != nil && *item.XListType != "atomic"
	case "object":
		return item.XMapType == nil || *item.XMapType != "atomic"
	}
	return false
}
