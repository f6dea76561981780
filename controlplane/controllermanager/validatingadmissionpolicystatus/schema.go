package validatingadmissionpolicystatus

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/client-go/discovery"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// schemas asks the API server. It keeps nothing: policies change seldom, and
// their kinds' schemas with them.
type schemas struct{ api discovery.DiscoveryInterface }

func (s schemas) kinds(r schema.GroupVersionResource) (out []schema.GroupVersionKind, err error) {
	list, err := s.api.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for _, have := range list.APIResources {
		if have.Name == r.Resource {
			out = append(out, r.GroupVersion().WithKind(have.Kind))
		}
	}
	return out, nil
}

// names tell types of the same kind apart.
var names atomic.Int64

func (s schemas) typeOf(kind schema.GroupVersionKind) (*apiservercel.DeclType, error) {
	paths, err := s.api.OpenAPIV3().Paths()
	if err != nil {
		return nil, err
	}
	path := "apis/" + kind.GroupVersion().String()
	if kind.Group == "" {
		path = "api/" + kind.Version
	}
	if paths[path] == nil {
		return nil, nil
	}
	data, err := paths[path].Schema(runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Components struct {
			Schemas map[string]*spec.Schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", path, err)
	}
	for name, s := range doc.Components.Schemas {
		var kinds []schema.GroupVersionKind
		if err := s.Extensions.GetObject("x-kubernetes-group-version-kind", &kinds); err != nil {
			return nil, err
		}
		for _, k := range kinds {
			if k != kind {
				continue
			}
			whole := (&expander{doc.Components.Schemas, map[string]bool{}}).expand(&spec.Schema{SchemaProps: spec.SchemaProps{Ref: spec.MustCreateRef(prefix + name)}})
			t := common.SchemaDeclType(&openapi.Schema{Schema: whole}, true)
			if t == nil {
				return nil, nil
			}
			return t.MaybeAssignTypeName(fmt.Sprintf("%s%d", kind.Kind, names.Add(1))), nil
		}
	}
	return nil, nil
}

const prefix = "#/components/schemas/"

// An expander puts schemas in the place of references to them. Within itself
// a schema is any object.
type expander struct {
	schemas map[string]*spec.Schema
	within  map[string]bool
}

func (e *expander) expand(s *spec.Schema) *spec.Schema {
	if s == nil {
		return nil
	}
	out := *s
	if name := reference(s); name != "" {
		to := e.schemas[name]
		if e.within[name] || to == nil {
			return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
		}
		e.within[name] = true
		defer delete(e.within, name)
		out = *to
	}
	if len(out.Properties) > 0 {
		properties := make(map[string]spec.Schema, len(out.Properties))
		for name, p := range out.Properties {
			properties[name] = *e.expand(&p)
		}
		out.Properties = properties
	}
	if a := out.AdditionalProperties; a != nil && a.Schema != nil {
		out.AdditionalProperties = &spec.SchemaOrBool{Allows: a.Allows, Schema: e.expand(a.Schema)}
	}
	if i := out.Items; i != nil && i.Schema != nil {
		out.Items = &spec.SchemaOrArray{Schema: e.expand(i.Schema)}
	}
	return &out
}

// reference is the schema that s stands for; allOf of one keeps a description
// beside it.
func reference(s *spec.Schema) string {
	if s.Ref.GetURL() != nil {
		return strings.TrimPrefix(s.Ref.String(), prefix)
	}
	for i := range s.AllOf {
		if name := reference(&s.AllOf[i]); name != "" {
			return name
		}
	}
	return ""
}
