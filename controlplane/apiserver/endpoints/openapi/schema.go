// Package openapi writes the OpenAPI v2 and v3 documents of the kinds served.
// It reads the Go types with the descriptions they carry, the merge rules and
// the registry's table; it writes nothing but the documents.
package openapi

import (
	"encoding/json"
	"reflect"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/endpoints/mergerules"
)

// A Schema is the part of JSON schema that documents use.
type Schema struct {
	Description          string             `json:"description,omitempty"`
	Type                 string             `json:"type,omitempty"`
	Format               string             `json:"format,omitempty"`
	Required             []string           `json:"required,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	Items                *Schema            `json:"items,omitempty"`
	AdditionalProperties *Schema            `json:"additionalProperties,omitempty"`
	Default              json.RawMessage    `json:"default,omitempty"`
	Enum                 []string           `json:"enum,omitempty"`
	AllOf                []*Schema          `json:"allOf,omitempty"`
	OneOf                []*Schema          `json:"oneOf,omitempty"`
	Ref                  string             `json:"$ref,omitempty"`
	UniqueItems          bool               `json:"uniqueItems,omitempty"`

	Kinds         []Kind   `json:"x-kubernetes-group-version-kind,omitempty"`
	ListKeys      []string `json:"x-kubernetes-list-map-keys,omitempty"`
	ListType      string   `json:"x-kubernetes-list-type,omitempty"`
	MapType       string   `json:"x-kubernetes-map-type,omitempty"`
	MergeKey      string   `json:"x-kubernetes-patch-merge-key,omitempty"`
	PatchStrategy string   `json:"x-kubernetes-patch-strategy,omitempty"`

	Unions json.RawMessage `json:"x-kubernetes-unions,omitempty"`

	// whole is a schema given as JSON (custom kinds), in place of the rest.
	whole json.RawMessage
}

// MarshalJSON writes whole when there is one.
func (s *Schema) MarshalJSON() ([]byte, error) {
	if s.whole != nil {
		return s.whole, nil
	}
	type plain Schema
	return json.Marshal((*plain)(s))
}

// A Kind is the extension that names a kind.
type Kind struct {
	Group   string `json:"group"`
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

// A builder collects the definitions that documents refer to.
type builder struct {
	v3          bool
	custom      bool // of a document of custom kinds alone
	definitions map[string]*Schema
	kinds       map[string][]Kind // by definition
	versions    map[schema.GroupVersion]bool
}

func newBuilder(v3 bool) *builder {
	return &builder{v3: v3, definitions: map[string]*Schema{}, kinds: map[string][]Kind{}, versions: map[schema.GroupVersion]bool{}}
}

func (b *builder) ref(name string) string {
	if b.v3 {
		return "#/components/schemas/" + name
	}
	return "#/definitions/" + name
}

// fixed are types with a JSON form of their own.
func (b *builder) fixed(t reflect.Type) *Schema {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return &Schema{Type: "string", Format: "date-time"}
	case reflect.TypeFor[metav1.Duration]():
		return &Schema{Type: "string"}
	case reflect.TypeFor[resource.Quantity]():
		if b.v3 {
			return &Schema{OneOf: []*Schema{{Type: "string"}, {Type: "number"}}}
		}
		return &Schema{Type: "string"}
	case reflect.TypeFor[intstr.IntOrString]():
		if b.v3 {
			return &Schema{Format: "int-or-string", OneOf: []*Schema{{Type: "integer"}, {Type: "string"}}}
		}
		return &Schema{Type: "string", Format: "int-or-string"}
	case reflect.TypeFor[apiextensionsv1.JSON](), reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool](),
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray](), reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray]():
		return &Schema{} // of any type
	case reflect.TypeFor[metav1.FieldsV1](), reflect.TypeFor[runtime.RawExtension]():
		return &Schema{Type: "object"}
	}
	return nil
}

// define makes t's definition, once, and returns its name.
func (b *builder) define(t reflect.Type) string {
	name := mergerules.Name(t)
	if b.definitions[name] != nil {
		return name
	}
	if s := b.fixed(t); s != nil {
		s.Description = docs(t)[""]
		b.definitions[name] = s
		overrides().amend(name, s, b.v3)
		return name
	}
	s := &Schema{Type: "object", Description: docs(t)[""]}
	b.definitions[name] = s // before its fields: types may refer to themselves
	if len(b.kinds[name]) == 0 {
		b.foreign(t, name)
	}
	s.Kinds = b.kinds[name]
	if mergerules.Of(t).Atomic {
		s.MapType = "atomic"
	}
	if t.Kind() != reflect.Struct {
		*s = *b.value(t)
		return name
	}
	b.fields(s, t, mergerules.Of(t))
	overrides().amend(name, s, b.v3)
	return name
}

// foreign marks a kind of another group that a kind here holds.
func (b *builder) foreign(t reflect.Type, name string) {
	o, ok := reflect.New(t).Interface().(runtime.Object)
	if !ok || t.PkgPath() == reflect.TypeFor[metav1.Status]().PkgPath() {
		return
	}
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return
	}
	for _, k := range gvks {
		b.addKind(name, Kind{k.Group, k.Kind, k.Version})
	}
}

// fields adds t's properties; inlined structs follow the rules of the type they
// are inlined in.
func (b *builder) fields(s *Schema, t reflect.Type, rules mergerules.Type) {
	descriptions := docs(t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" && (f.Anonymous || strings.Contains(opts, "inline")) {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			b.fields(s, inner, rules)
			continue
		}
		p := b.value(f.Type)
		optional := strings.Contains(opts, "omitempty") || strings.Contains(opts, "omitzero")
		if p.Ref != "" && b.v3 && (descriptions == nil || descriptions[name] != "" || defaultOf(f.Type, optional, b.fixed(f.Type) != nil) != nil) {
			// A reference may have no neighbours.
			p = &Schema{AllOf: []*Schema{p}}
		}
		p.Description = descriptions[name]
		if b.v3 {
			p.Default = defaultOf(f.Type, optional, b.fixed(f.Type) != nil)
		}
		if !optional {
			s.Required = append(s.Required, name)
		}
		p.MergeKey, p.PatchStrategy = f.Tag.Get("patchMergeKey"), f.Tag.Get("patchStrategy")
		rule := rules.Fields[name]
		switch {
		case rule.Set:
			p.ListType = "set"
		case len(rule.Keys) > 0:
			p.ListType = "map"
			for _, k := range rule.Keys {
				p.ListKeys = append(p.ListKeys, k.Name)
			}
		case rule.Atomic:
			p.MapType = "atomic"
		case rule.Granular:
			p.MapType = "granular"
		case p.Type == "array" && !(name == "items" && strings.HasSuffix(t.Name(), "List")) && f.Type.Name() == "":
			p.ListType = "atomic"
		}
		if s.Properties == nil {
			s.Properties = map[string]*Schema{}
		}
		s.Properties[name] = p
	}
}

// defaultOf is the value of an absent field that cannot be left out.
func defaultOf(t reflect.Type, optional, fixed bool) json.RawMessage {
	switch t.Kind() {
	case reflect.Struct:
		if !fixed {
			return json.RawMessage("{}")
		}
	case reflect.String:
		if !optional {
			return json.RawMessage(`""`)
		}
	case reflect.Bool:
		if !optional {
			return json.RawMessage("false")
		}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64:
		if !optional {
			return json.RawMessage("0")
		}
	}
	return nil
}

// value is the schema of a value of type t.
func (b *builder) value(t reflect.Type) *Schema {
	switch t.Kind() {
	case reflect.Pointer:
		return b.value(t.Elem())
	case reflect.Struct:
		return &Schema{Ref: b.ref(b.define(t))}
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int32, reflect.Uint32, reflect.Int16, reflect.Uint16, reflect.Uint8:
		return &Schema{Type: "integer", Format: "int32"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return &Schema{Type: "integer", Format: "int64"}
	case reflect.Float64, reflect.Float32:
		return &Schema{Type: "number", Format: "double"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &Schema{Type: "string", Format: "byte"}
		}
		return &Schema{Type: "array", Items: b.element(t.Elem())}
	case reflect.Map:
		return &Schema{Type: "object", AdditionalProperties: b.element(t.Elem())}
	}
	return &Schema{Type: "object"}
}

// element is the schema of a list's item or a map's value.
func (b *builder) element(t reflect.Type) *Schema {
	s := b.value(t)
	if !b.v3 {
		return s
	}
	d := defaultOf(t, false, b.fixed(t) != nil)
	if s.Ref != "" && d != nil {
		s = &Schema{AllOf: []*Schema{s}}
	}
	s.Default = d
	return s
}
