package definition

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *checker) names(n *apiextensions.CustomResourceDefinitionNames, at *field.Path) {
	label := func(at *field.Path, shown, value, prefix string) {
		if errs := utilvalidation.IsDNS1035Label(value); value != "" && len(errs) > 0 {
			c.invalid(at, shown, prefix+strings.Join(errs, ","))
		}
	}
	const mixed = "may have mixed case, but should otherwise match: "
	label(at.Child("plural"), n.Plural, n.Plural, "")
	label(at.Child("singular"), n.Singular, n.Singular, "")
	label(at.Child("kind"), n.Kind, strings.ToLower(n.Kind), mixed)
	label(at.Child("listKind"), n.ListKind, strings.ToLower(n.ListKind), mixed)
	each := func(name string, values []string) {
		for i, v := range values {
			if errs := utilvalidation.IsDNS1035Label(v); len(errs) > 0 {
				c.invalid(at.Child(name).Index(i), v, strings.Join(errs, ","))
			}
		}
	}
	each("shortNames", n.ShortNames)
	if n.Kind != "" && n.Kind == n.ListKind {
		c.invalid(at.Child("listKind"), n.ListKind, "kind and listKind may not be the same")
	}
	each("categories", n.Categories)
}

var (
	columnTypes   = []string{"boolean", "date", "integer", "number", "string"}
	columnFormats = []string{"byte", "date", "date-time", "double", "float", "int32", "int64", "password"}
)

func (c *checker) column(col *apiextensions.CustomResourceColumnDefinition, at *field.Path) {
	if col.Name == "" {
		c.required(at.Child("name"), "")
	}
	types := "must be one of " + strings.Join(columnTypes, ",")
	switch {
	case col.Type == "":
		c.required(at.Child("type"), types)
	case !slices.Contains(columnTypes, col.Type):
		c.invalid(at.Child("type"), col.Type, types)
	}
	if col.Format != "" && !slices.Contains(columnFormats, col.Format) {
		c.invalid(at.Child("format"), col.Format, "must be one of "+strings.Join(columnFormats, ","))
	}
	if col.JSONPath == "" {
		c.required(at.Child("JSONPath"), "")
		return
	}
	c.jsonPath(col.JSONPath, at.Child("JSONPath"))
}

// jsonPath demands a path of the simple form.
func (c *checker) jsonPath(path string, at *field.Path) bool {
	if path[0] == '.' {
		return true
	}
	c.invalid(at, path, "must be a simple json path starting with .")
	return false
}

const maxSelectable = 8

// fieldPath is where a path leads in a schema. The library panics below an object
// of any fields.
func fieldPath(path string, s *schema.Structural, options ...cel.ValidFieldPathOption) (at *field.Path, found *schema.Structural, err error) {
	defer func() {
		if recover() != nil {
			at, found, err = nil, nil, errors.New("does not refer to a valid field")
		}
	}()
	return cel.ValidFieldPath(path, s, options...)
}

func (c *checker) selectableFields(fields []apiextensions.SelectableField, s *schema.Structural, at *field.Path, version string) {
	seen := sets.New[string]()
	for i, f := range fields {
		where := at.Index(i).Child("jsonPath")
		if f.JSONPath == "" {
			c.required(where, "")
			continue
		}
		path, found, err := fieldPath(f.JSONPath, s, cel.WithFieldPathAllowArrayNotation(false))
		if err != nil {
			c.invalid(where, f.JSONPath, fmt.Sprintf("is an invalid path: %v", err))
			continue
		}
		if path.Root().String() == "metadata" {
			c.invalid(where, f.JSONPath, "must not point to fields in metadata")
		}
		if found == nil || found.Type != "string" && found.Type != "boolean" && found.Type != "integer" {
			c.invalid(where, f.JSONPath, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.")
		}
		if seen.Has(path.String()) {
			c.add(field.Duplicate(where, f.JSONPath))
		}
		seen.Insert(path.String())
	}
	if n := seen.Len(); n > maxSelectable && !c.manyFields.Has(version) {
		c.add(field.TooMany(at, n, maxSelectable))
	}
}

func (c *checker) subresources(s *apiextensions.CustomResourceSubresources, at *field.Path) {
	if s == nil || s.Scale == nil {
		return
	}
	under := func(value string, shown any, name, where string, prefixes ...string) {
		at := at.Child(name)
		if value == "" {
			c.required(at, "")
			return
		}
		if !c.jsonPath(value, at) {
			return
		}
		for _, p := range prefixes {
			if strings.HasPrefix(value, p) {
				return
			}
		}
		c.invalid(at, shown, "should be a json path under "+where)
	}
	under(s.Scale.SpecReplicasPath, s.Scale.SpecReplicasPath, "scale.specReplicasPath", ".spec", ".spec.")
	under(s.Scale.StatusReplicasPath, s.Scale.StatusReplicasPath, "scale.statusReplicasPath", ".status", ".status.")
	if p := s.Scale.LabelSelectorPath; p != nil && *p != "" {
		under(*p, p, "scale.labelSelectorPath", "either .spec or .status", ".spec.", ".status.")
	}
}
