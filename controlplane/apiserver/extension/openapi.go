package extension

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"knarr/controlplane/apiserver/endpoints/openapi"
)

// SchemaID changes when what the documents say of the kind does.
func (k *kind) SchemaID() string {
	return fmt.Sprint(k.crd.UID, k.crd.Generation, k.names)
}

// modelName is a kind as documents call it: example.com, v1, Foo is
// com.example.v1.Foo.
func (k *kind) modelName() string {
	labels := strings.Split(k.gvk.Group, ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".") + "." + k.gvk.Version + "." + k.gvk.Kind
}

// OpenAPISchema is the kind's schema as documents show it. Documents are asked
// for rarely: nothing is kept.
func (k *kind) OpenAPISchema(v2 bool) (string, json.RawMessage) {
	s := k.model(v2)
	if len(k.version.SelectableFields) > 0 {
		var list []any
		for _, f := range k.version.SelectableFields {
			list = append(list, map[string]any{"fieldPath": strings.TrimPrefix(f.JSONPath, ".")})
		}
		s.AddExtension("x-kubernetes-selectable-fields", list)
	}
	data, err := json.Marshal(s)
	if err != nil {
		data = []byte(`{"type":"object"}`)
	}
	return k.modelName(), data
}

// model is the schema with the fields that every object has. What v2 cannot say
// is left out of it.
func (k *kind) model(v2 bool) *spec.Schema {
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	if ss := k.published(); ss != nil && !(v2 && (ss.XPreserveUnknownFields || k.crd.Spec.PreserveUnknownFields)) {
		if v2 {
			ss = openapiv2.ToStructuralOpenAPIV2(ss)
		}
		s = ss.ToKubeOpenAPI()
		if v2 {
			dropDefaults(s)
		}
		objectFields(s, v2)
		embedded(s, v2)
	}
	s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": k.gvk.Group, "version": k.gvk.Version, "kind": k.gvk.Kind}})
	return s
}

// published is the structural schema to show, nil when there is none.
func (k *kind) published() *schema.Structural {
	props, err := k.schemaOf(k.version.Name)
	if err != nil || props == nil || invalidTypes(props) {
		return nil
	}
	ss, err := schema.NewStructural(props)
	if err != nil || len(schema.ValidateStructural(nil, ss)) > 0 {
		return nil
	}
	return ss.Unfold()
}

func invalidTypes(s *apiextensions.JSONSchemaProps) bool {
	switch s.Type {
	case "", "string", "number", "integer", "boolean", "array", "object":
		return false
	}
	return true
}

const objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

func metaRef(v2 bool) spec.Schema {
	text := "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
	if v2 {
		return *spec.RefSchema("#/definitions/" + objectMeta).WithDescription(text)
	}
	s := spec.Schema{SchemaProps: spec.SchemaProps{AllOf: []spec.Schema{*spec.RefSchema("#/components/schemas/" + objectMeta)}}}
	return *s.WithDescription(text)
}

// objectFields adds kind, apiVersion and metadata to the schema of an object.
func objectFields(s *spec.Schema, v2 bool) {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	s.SetProperty("metadata", metaRef(v2))
	for _, name := range []string{"apiVersion", "kind"} {
		s.SetProperty(name, *spec.StringProperty().WithDescription(docs[name]))
	}
}

// dropDefaults: v2 documents show none.
func dropDefaults(s *spec.Schema) {
	if s == nil {
		return
	}
	s.Default = nil
	for name, p := range s.Properties {
		dropDefaults(&p)
		s.Properties[name] = p
	}
	if s.Items != nil {
		dropDefaults(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		dropDefaults(s.AdditionalProperties.Schema)
	}
}

// embedded does the same for objects within.
func embedded(s *spec.Schema, v2 bool) {
	if s == nil {
		return
	}
	for _, name := range slices.Collect(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		embedded(&p, v2)
		s.Properties[name] = p
	}
	if s.Items != nil {
		embedded(s.Items.Schema, v2)
	}
	if s.AdditionalProperties != nil {
		embedded(s.AdditionalProperties.Schema, v2)
	}
	if keep, ok := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); ok && keep && v2 {
		return
	}
	if is, ok := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !ok || !is {
		return
	}
	s.SetProperty("metadata", metaRef(v2))
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription("apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"))
	s.SetProperty("kind", *spec.StringProperty().WithDescription("kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}

// makeTypes are the merge schemas of all versions.
func (d *definition) makeTypes() (managedfields.TypeConverter, error) {
	models, err := openapi.MetaModels()
	if err != nil {
		return nil, err
	}
	for i := range d.crd.Spec.Versions {
		k := newKind(d, &d.crd.Spec.Versions[i])
		models[k.modelName()] = k.model(false)
	}
	return managedfields.NewTypeConverter(models, d.crd.Spec.PreserveUnknownFields)
}
