package definition

import (
	"fmt"
	"strings"
	"unicode"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type (
	specification = apiextensions.CustomResourceDefinitionSpec
	version       = apiextensions.CustomResourceDefinitionVersion
)

func (c *checker) spec(spec *specification, at *field.Path) {
	switch errs := utilvalidation.IsDNS1123Subdomain(spec.Group); {
	case spec.Group == "":
		c.required(at.Child("group"), "")
	case len(errs) > 0:
		c.invalid(at.Child("group"), spec.Group, strings.Join(errs, ","))
	case !strings.Contains(spec.Group, "."):
		c.invalid(at.Child("group"), spec.Group, "should be a domain with at least one dot")
	}
	c.oneOf(at.Child("scope"), string(spec.Scope), string(apiextensions.ClusterScoped), string(apiextensions.NamespaceScoped))
	pruning := spec.PreserveUnknownFields == nil || !*spec.PreserveUnknownFields
	if pruning {
		c.structural = true
	}
	c.schemaOfEach(spec, at, pruning)
	if anySchema(spec, hasDefault) {
		c.structural = true
		if spec.PreserveUnknownFields == nil || *spec.PreserveUnknownFields {
			c.invalid(at.Child("preserveUnknownFields"), true, "must be false in order to use defaults in the schema")
		}
	}
	if anySchema(spec, hasExtension) {
		c.structural = true
	}
	c.versions(spec, at)

	names := at.Child("names")
	for _, n := range []struct{ field, value string }{
		{"plural", spec.Names.Plural}, {"singular", spec.Names.Singular}, {"kind", spec.Names.Kind}, {"listKind", spec.Names.ListKind},
	} {
		if n.value == "" {
			c.required(names.Child(n.field), "")
		}
	}
	c.names(&spec.Names, names)

	// What all versions share.
	c.validation(spec.Validation, anyStatus(spec), spec.Version, at.Child("validation"))
	c.subresources(spec.Subresources, at.Child("subresources"))
	for i := range spec.AdditionalPrinterColumns {
		c.column(&spec.AdditionalPrinterColumns[i], at.Child("additionalPrinterColumns").Index(i))
	}
	if len(spec.SelectableFields) > 0 {
		if spec.Validation == nil {
			c.invalid(at.Child("selectableFields"), "", "may only be set when validations.schema is included")
		} else {
			c.selectable(spec.SelectableFields, spec.Validation.OpenAPIV3Schema, at, "")
		}
	}
	if spec.Conversion != nil && spec.Conversion.Strategy != apiextensions.NoneConverter && (spec.PreserveUnknownFields == nil || *spec.PreserveUnknownFields) {
		c.invalid(at.Child("conversion", "strategy"), spec.Conversion.Strategy, "must be None if spec.preserveUnknownFields is true")
	}
	c.conversion(spec.Conversion, at.Child("conversion"))
}

// schemaOfEach demands a schema, of every version or of those whose objects
// would otherwise be pruned to nothing.
func (c *checker) schemaOfEach(spec *specification, at *field.Path, pruning bool) {
	if v := spec.Validation; v != nil && v.OpenAPIV3Schema != nil || !c.schemas && !pruning {
		return
	}
	for i, v := range spec.Versions {
		if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			continue
		}
		where := at.Child("versions").Index(i).Child("schema", "openAPIV3Schema")
		switch {
		case c.schemas:
			c.required(where, "")
		case v.Served:
			c.required(where, "because otherwise all fields are pruned")
		}
	}
}

func (c *checker) versions(spec *specification, at *field.Path) {
	stored, unique, seen := 0, true, map[string]bool{}
	var own struct{ schemas, subresources, columns int }
	for i := range spec.Versions {
		v := &spec.Versions[i]
		where := at.Child("versions").Index(i)
		if v.Storage {
			stored++
		}
		unique = unique && !seen[v.Name]
		seen[v.Name] = true
		if v.Schema != nil {
			own.schemas++
		}
		if v.Subresources != nil {
			own.subresources++
		}
		if len(v.AdditionalPrinterColumns) > 0 {
			own.columns++
		}
		if errs := utilvalidation.IsDNS1035Label(v.Name); len(errs) > 0 {
			c.invalid(where.Child("name"), v.Name, strings.Join(errs, ","))
		}
		c.version(v, withStatus(v.Subresources) || !anyOwnSubresources(spec) && withStatus(spec.Subresources), where)
	}
	exclusive := func(top bool, count int, name, words string) {
		if top && count > 0 {
			c.forbidden(at.Child(name), "top-level and per-version "+words+" are mutually exclusive")
		}
	}
	exclusive(spec.Validation != nil, own.schemas, "validation", "schemas")
	exclusive(spec.Subresources != nil, own.subresources, "subresources", "subresources")
	exclusive(len(spec.AdditionalPrinterColumns) > 0, own.columns, "additionalPrinterColumns", "additionalPrinterColumns")
	identical := func(count int, part func(*version) any, words, top string) {
		if len(spec.Versions) == 0 || count != len(spec.Versions) {
			return
		}
		for i := range spec.Versions {
			if !equality.Semantic.DeepEqual(part(&spec.Versions[i]), part(&spec.Versions[0])) {
				return
			}
		}
		c.invalid(at.Child("versions"), spec.Versions, "per-version "+words+" may not all be set to identical values (top-level "+top+" should be used instead)")
	}
	identical(own.schemas, func(v *version) any { return v.Schema }, "schemas", "validation")
	identical(own.subresources, func(v *version) any { return v.Subresources }, "subresources", "subresources")
	identical(own.columns, func(v *version) any { return v.AdditionalPrinterColumns }, "additionalPrinterColumns", "additionalPrinterColumns")
	if !unique {
		c.invalid(at.Child("versions"), spec.Versions, "must contain unique version names")
	}
	if stored != 1 {
		c.invalid(at.Child("versions"), spec.Versions, "must have exactly one version marked as storage version")
	}
	if spec.Version != "" {
		if errs := utilvalidation.IsDNS1035Label(spec.Version); len(errs) > 0 {
			c.invalid(at.Child("version"), spec.Version, strings.Join(errs, ","))
		}
		if len(spec.Versions) > 0 && spec.Versions[0].Name != spec.Version {
			c.invalid(at.Child("version"), spec.Version, "must match the first version in spec.versions")
		}
	}
}

func anyOwnSubresources(spec *specification) bool {
	for i := range spec.Versions {
		if spec.Versions[i].Subresources != nil {
			return true
		}
	}
	return false
}

func withStatus(s *apiextensions.CustomResourceSubresources) bool { return s != nil && s.Status != nil }

func anyStatus(spec *specification) bool {
	for i := range spec.Versions {
		if withStatus(spec.Versions[i].Subresources) {
			return true
		}
	}
	return withStatus(spec.Subresources)
}

func (c *checker) version(v *version, status bool, at *field.Path) {
	for _, msg := range deprecationFaults(v.Deprecated, v.DeprecationWarning) {
		c.invalid(at.Child("deprecationWarning"), v.DeprecationWarning, msg)
	}
	c.validation(v.Schema, status, v.Name, at.Child("schema"))
	c.subresources(v.Subresources, at.Child("subresources"))
	for i := range v.AdditionalPrinterColumns {
		c.column(&v.AdditionalPrinterColumns[i], at.Child("additionalPrinterColumns").Index(i))
	}
	if len(v.SelectableFields) == 0 {
		return
	}
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		c.invalid(at.Child("selectableFields"), "", "may only be set when `version.schema.openAPIV3Schema` is not included")
		return
	}
	c.selectable(v.SelectableFields, v.Schema.OpenAPIV3Schema, at, v.Name)
}

func (c *checker) selectable(fields []apiextensions.SelectableField, s *apiextensions.JSONSchemaProps, at *field.Path, version string) {
	ss, err := schema.NewStructural(s)
	if err != nil {
		c.invalid(at.Child("schema.openAPIV3Schema"), "", err.Error())
		return // there is nothing that fields could point into; upstream panics
	}
	c.selectableFields(fields, ss, at.Child("selectableFields"), version)
}

// deprecationFaults are what is wrong with the warning of a deprecated version.
func deprecationFaults(deprecated bool, warning *string) (out []string) {
	switch {
	case warning == nil:
		return nil
	case !deprecated:
		return []string{"can only be set for deprecated versions"}
	}
	text := *warning
	if len(text) > 256 {
		out = append(out, "must be <= 256 characters long")
	}
	if text == "" {
		out = append(out, "must not be an empty string")
	}
	for i, r := range text {
		if !unicode.IsPrint(r) {
			out = append(out, fmt.Sprintf("must only contain printable UTF-8 characters; non-printable character found at index %d", i))
			break
		}
	}
	if strings.ToValidUTF8(text, "") != text {
		out = append(out, "must only contain printable UTF-8 characters")
	}
	return out
}

// oneOf demands one of the values, named in the order given.
func (c *checker) oneOf(at *field.Path, value string, accepted ...string) {
	if value == "" {
		c.required(at, "")
		return
	}
	for _, a := range accepted {
		if a == value {
			return
		}
	}
	c.add(field.NotSupported(at, value, accepted))
}
