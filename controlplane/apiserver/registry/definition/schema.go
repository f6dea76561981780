package definition

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type props = apiextensions.JSONSchemaProps

// rootFields are what the root of a schema may say when status is taken out of
// it as a schema of its own.
var rootFields = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum",
	"MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties",
	"ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}

// validation checks the schema of a version, or of all of them.
func (c *checker) validation(v *apiextensions.CustomResourceValidation, status bool, version string, at *field.Path) {
	if v == nil {
		return
	}
	before := len(c.faults)
	if s := v.OpenAPIV3Schema; s != nil {
		root := at.Child("openAPIV3Schema")
		if status {
			c.rootWithStatus(s, at)
		}
		if s.Nullable {
			c.forbidden(at.Child("openAPIV3Schema.nullable"), "nullable cannot be true at the root")
		}
		rules, late := c.structure(s, root)
		w := &walk{checker: c, cheap: c.same.Has(version), rules: rules}
		w.schema(s, root, place{defaults: true, root: true}, rules.root(s))
		c.faults = append(append(c.faults, w.shape...), w.cel...)
		if len(c.faults) == before {
			// What the walk has found already is not reported twice.
			c.faults = append(c.faults, late...)
		}
		rules.total(c, root)
	}
	if len(c.faults) == before {
		if _, _, err := apiservervalidation.NewSchemaValidator(v.OpenAPIV3Schema); err != nil {
			c.invalid(at, "", fmt.Sprintf("error building validator: %v", err))
		}
	}
}

func (c *checker) rootWithStatus(s *props, at *field.Path) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			continue
		}
		name := v.Type().Field(i).Name
		switch {
		case name == "Type" && s.Type != "object":
			c.invalid(at.Child("openAPIV3Schema.type"), s.Type, `only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)
			return
		case !slices.Contains(rootFields, name):
			c.invalid(at.Child("openAPIV3Schema"), *s, fmt.Sprintf(`only %v fields are allowed at the root of the schema if the status subresource is enabled`, rootFields))
			return
		}
	}
}

// structure demands a structural schema with good defaults. Rules are only
// compiled when it is one; late are faults that the walk words better.
func (c *checker) structure(s *props, at *field.Path) (rules *costs, late field.ErrorList) {
	if !c.structural {
		return nil, nil
	}
	ss, err := schema.NewStructural(s)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(at, "", err.Error())}
	}
	if errs := schema.ValidateStructural(at, ss); len(errs) > 0 {
		c.add(errs...)
		return nil, nil
	}
	errs, err := defaulting.ValidateDefaults(c.ctx, at, ss, true, c.prunedDefaults)
	if err != nil {
		errs = field.ErrorList{field.Invalid(at, "", err.Error())}
	}
	if len(errs) > 0 {
		c.add(errs...)
		return nil, nil
	}
	return &costs{}, nil
}

// A place is where a schema stands.
type place struct {
	root     bool
	meta     bool // in the schema of an object's metadata
	defaults bool // are allowed
	why      string
	// apart is the first part above whose items cannot be matched with those of
	// the object before.
	apart *field.Path
}

func (p place) within(at *field.Path, matched bool) place {
	p.root = false
	if !matched && p.apart == nil {
		p.apart = at
	}
	return p
}

func (p place) noDefaults(why string) place {
	p.defaults, p.why = false, why
	return p
}

// A walk checks a schema and all its parts.
type walk struct {
	*checker
	cheap bool // rules may cost what they did
	rules *costs
	shape field.ErrorList
	cel   field.ErrorList
}

func (w *walk) bad(errs ...*field.Error) { w.shape = append(w.shape, errs...) }

var metaNames = sets.New("metadata", "kind", "apiVersion")

func (w *walk) schema(s *props, at *field.Path, p place, r *scope) {
	if s == nil {
		return
	}
	before := len(w.shape)
	w.unsupported(s, at, p)
	if s.UniqueItems {
		w.bad(field.Forbidden(at.Child("uniqueItems"), "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"))
	}
	plain := p
	plain.root = false
	if a := s.AdditionalProperties; a != nil {
		if len(s.Properties) != 0 && (!a.Allows || a.Schema != nil) {
			w.bad(field.Forbidden(at.Child("additionalProperties"), "additionalProperties and properties are mutual exclusive"))
		}
		in := plain
		if p.meta {
			in = in.noDefaults("inside additionalProperties applying to object metadata")
		}
		w.schema(a.Schema, at.Child("additionalProperties"), in, r.values(a.Schema))
	}
	for _, name := range sets.List(sets.KeySet(s.Properties)) {
		part := s.Properties[name]
		in := p.within(at, cel.MapIsCorrelatable(s.XMapType))
		if (p.root || s.XEmbeddedResource) && metaNames.Has(name) {
			in.meta = true
			if p.root {
				in = in.noDefaults("in top-level " + name)
			}
		}
		w.schema(&part, at.Child("properties").Key(name), in, r.property(&part, name))
	}
	w.schema(s.Not, at.Child("not"), plain, nil)
	for _, j := range []struct {
		name string
		list []props
	}{{"allOf", s.AllOf}, {"oneOf", s.OneOf}, {"anyOf", s.AnyOf}} {
		for i := range j.list {
			w.schema(&j.list[i], at.Child(j.name).Index(i), plain, nil)
		}
	}
	for _, name := range sets.List(sets.KeySet(s.Definitions)) {
		part := s.Definitions[name]
		w.schema(&part, at.Child("definitions").Key(name), plain, nil)
	}
	if s.Items != nil {
		in := p.within(at, s.XListType != nil && *s.XListType == "map")
		w.schema(s.Items.Schema, at.Child("items"), in, r.items(s.Items.Schema))
		for i := range s.Items.JSONSchemas {
			part := &s.Items.JSONSchemas[i]
			w.schema(part, at.Child("items").Index(i), in, r.items(part))
		}
	}
	for _, name := range sets.List(sets.KeySet(s.Dependencies)) {
		w.schema(s.Dependencies[name].Schema, at.Child("dependencies").Key(name), plain, nil)
	}
	w.extensions(s, at)
	w.ruleTexts(s, at)
	if len(s.XValidations) > 0 && len(w.shape) == before && r != nil {
		w.compile(s, at, p, r)
	}
}

// unsupported refuses what OpenAPI can say and definitions cannot.
func (w *walk) unsupported(s *props, at *field.Path, p place) {
	forbid := func(is bool, name, msg string) {
		if is {
			w.bad(field.Forbidden(at.Child(name), msg))
		}
	}
	if w.types && s.Type != "" && !schemaTypes.Has(s.Type) {
		w.bad(field.NotSupported(at.Child("type"), s.Type, sets.List(schemaTypes)))
	}
	msg := "must not be set"
	if p.why != "" {
		msg += " " + p.why
	}
	forbid(s.Default != nil && !p.defaults, "default", msg)
	forbid(s.ID != "", "id", "id is not supported")
	forbid(s.AdditionalItems != nil, "additionalItems", "additionalItems is not supported")
	forbid(len(s.PatternProperties) != 0, "patternProperties", "patternProperties is not supported")
	forbid(len(s.Definitions) != 0, "definitions", "definitions is not supported")
	forbid(s.Dependencies != nil, "dependencies", "dependencies is not supported")
	forbid(s.Ref != nil, "$ref", "$ref is not supported")
	forbid(s.Type == "null", "type", "type cannot be set to null, use nullable as an alternative")
	forbid(s.Items != nil && len(s.Items.JSONSchemas) != 0, "items", "items must be a schema object and not an array")
	forbid(p.meta && s.XEmbeddedResource, "x-kubernetes-embedded-resource", "must not be used inside of resource meta")
}
