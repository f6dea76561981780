package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	rules "knarr/controlplane/apiserver/registry/definition"
)

// versionOf is a definition of one version with that schema.
func versionOf(props *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "foos.example.com"
	crd.Spec.Group, crd.Spec.Scope = "example.com", apiextensionsv1.NamespaceScoped
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Singular: "foo", Kind: "Foo", ListKind: "FooList"}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
		Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props},
		Subresources:             &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		SelectableFields:         []apiextensionsv1.SelectableField{{JSONPath: ".spec.size"}},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Size", Type: "integer", JSONPath: ".spec.list[*].size"}},
	}}
	return crd
}

func kindOf(crd *apiextensionsv1.CustomResourceDefinition) *kind {
	d := newDefinition(crd, crd.Spec.Names, func() (*apiextensionsv1.CustomResourceDefinition, error) { return crd, nil }, nil, &keptRules{})
	return d.kinds[0]
}

const schemaOfMuch = `
type: object
properties:
  spec:
    type: object
    default: {size: 3}
    x-kubernetes-validations: [{rule: "!has(self.size) || self.size < 10"}, {rule: "!has(oldSelf.size) || self.size >= oldSelf.size"}]
    properties:
      size: {type: integer, default: 1, minimum: 0}
      port: {x-kubernetes-int-or-string: true}
      free: {type: object, x-kubernetes-preserve-unknown-fields: true}
      pod: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
      maybe: {type: string, nullable: true, pattern: "^a+$"}
      list:
        type: array
        maxItems: 20
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items: {type: object, required: [name], properties: {name: {type: string, maxLength: 20}, size: {type: integer, default: 7}}}
      set: {type: array, maxItems: 20, x-kubernetes-list-type: set, items: {type: string, maxLength: 20}}
      some: {type: object, additionalProperties: {type: object, properties: {a: {type: boolean, default: true}}}}
      when: {type: string, format: date-time}
  status: {type: object, properties: {n: {type: number}}}
`

// A custom object is pruned, defaulted and judged, or refused; what has been
// pruned needs no pruning.
func FuzzCustomObject(f *testing.F) {
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.Unmarshal([]byte(schemaOfMuch), props); err != nil {
		f.Fatal(err)
	}
	k := kindOf(versionOf(props))
	old := &unstructured.Unstructured{Object: map[string]any{"kind": "Foo", "apiVersion": "example.com/v1", "metadata": map[string]any{"name": "a"}, "spec": map[string]any{"size": int64(2)}}}
	f.Add([]byte("kind: Foo\napiVersion: example.com/v1\nmetadata: {name: a, labels: {a: b}}\nspec: {size: 3, port: a, x: y, list: [{name: a}, {name: a}], set: [a, a], some: {b: {}, c: null}, pod: {kind: P, apiVersion: v1, metadata: {name: 1}}}\nstatus: {n: 1.5}\n"))
	f.Add([]byte(`{"metadata":1,"spec":[]}`))
	f.Add([]byte(`{"kind":null,"metadata":{"managedFields":{},"ownerReferences":[1]},"spec":{"maybe":null,"free":{"a":null},"list":null,"when":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		data, err := yaml.YAMLToJSON(data)
		if err != nil {
			return
		}
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON(data) != nil || u.IsList() {
			return
		}
		if _, err := k.Coerce(u, true); err != nil {
			return
		}
		k.Defaults(u)
		again := u.DeepCopy()
		if unknown, err := k.Coerce(again, true); err != nil || len(unknown) > 0 {
			t.Fatalf("what was pruned has %q, %v: %v", unknown, err, u.Object)
		}
		ctx := context.Background()
		k.ValidateObject(ctx, u.DeepCopy(), nil)
		k.ValidateObject(ctx, u.DeepCopy(), old)
		k.PrepareObject(ctx, u, old)
		k.Warnings(ctx, u, old)
		k.FieldSet(u)
		if _, err := json.Marshal(k.Row(u)); err != nil {
			t.Fatalf("a row that is no JSON: %v", err)
		}
	})
}

// A definition is accepted or refused, and what is accepted can be served.
func FuzzDefinition(f *testing.F) {
	f.Add([]byte(schemaOfMuch), []byte("{spec: {size: 1}}"))
	f.Add([]byte("{type: object, properties: {a: {type: array, items: {type: string}, default: [1]}}}"), []byte("{}"))
	f.Add([]byte("{type: object, additionalProperties: true, allOf: [{not: {required: [a]}}]}"), []byte("{a: 1}"))
	f.Add([]byte("{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: 'self.matches(\"(\")', messageExpression: \"'x' + self\"}]}}}"), []byte("{a: b}"))
	f.Add([]byte("{type: object, additionalProperties: true, x-kubernetes-validations: [{rule: 'true', fieldPath: '.a.b.c'}]}"), []byte("{a: 1}"))
	f.Add([]byte("{$ref: '#', type: object}"), []byte("{}"))
	f.Fuzz(func(t *testing.T, data, object []byte) {
		props := &apiextensionsv1.JSONSchemaProps{}
		if yaml.Unmarshal(data, props) != nil {
			return
		}
		crd := versionOf(props)
		ctx := context.Background()
		rules.Warnings(crd, nil)
		if len(rules.Validate(ctx, crd, nil)) > 0 {
			return
		}
		k := kindOf(crd)
		if _, err := k.shape("v1"); err != nil {
			t.Fatalf("accepted, but not to be served: %v", err)
		}
		if _, err := k.Types(); err != nil {
			t.Fatalf("accepted, but has no types: %v", err)
		}
		object, err := yaml.YAMLToJSON(object)
		u := &unstructured.Unstructured{}
		if err != nil || json.Unmarshal(object, &u.Object) != nil || u.Object == nil {
			return
		}
		u.SetGroupVersionKind(k.gvk)
		if _, err := k.Coerce(u, false); err != nil {
			return
		}
		k.Defaults(u)
		k.ValidateObject(ctx, u, nil)
	})
}

// Whatever a column's path finds in an object is shown or left out.
func FuzzColumns(f *testing.F) {
	f.Add(".spec.a[0].b", 0, []byte(`{"spec":{"a":[{"b":null}]}}`))
	f.Add(".spec.a[?(@.b>1)].b", 1, []byte(`{"spec":{"a":[{"b":2},{"b":"x"}]}}`))
	f.Add(".metadata.creationTimestamp", 4, []byte(`{"metadata":{"creationTimestamp":"0001-01-01T00:00:00Z"}}`))
	f.Add("..a", 3, []byte(`{"a":1e400}`))
	f.Add(".spec.a[-1:0:2]}{range .spec", 2, []byte(`{}`))
	types := []string{"string", "integer", "number", "boolean", "date"}
	f.Fuzz(func(t *testing.T, path string, typ int, data []byte) {
		u := &unstructured.Unstructured{}
		if json.Unmarshal(data, &u.Object) != nil || u.Object == nil {
			return
		}
		c := newColumns([]apiextensionsv1.CustomResourceColumnDefinition{{Name: "A", Type: types[uint(typ)%5], JSONPath: path}})
		cells := c.row(u)
		if len(cells) != len(c.heads) {
			t.Fatalf("%d cells under %d heads", len(cells), len(c.heads))
		}
		if _, err := json.Marshal(cells); err != nil {
			t.Fatalf("%s of %s is no JSON: %v", path, data, err)
		}
	})
}

type answering []byte

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	var q review
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		return nil, err
	}
	body := bytes.ReplaceAll(a, []byte("UID"), []byte(q.Request.UID))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

// Whatever a conversion webhook answers, what comes of it is the same object in
// the other version, or an error.
func FuzzConversion(f *testing.F) {
	f.Add(true, []byte(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{"uid":"UID","result":{"status":"Success"},"convertedObjects":[{"apiVersion":"example.com/v2","kind":"Foo","metadata":{"name":"x","uid":"1","labels":{"c":"d"}}}]}}`))
	f.Add(false, []byte(`{"response":{"result":{"status":"Success"},"convertedObjects":[{"apiVersion":"example.com/v2","kind":"Foo","metadata":{"name":"x","uid":"1","annotations":null,"labels":[]}}]}}`))
	f.Add(true, []byte(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{"uid":"UID","result":{"status":"Failure","message":"no"}}}`))
	f.Add(false, []byte(`{"response":{"result":{"status":"Success"},"convertedObjects":[null]}}`))
	f.Fuzz(func(t *testing.T, v1 bool, answer []byte) {
		c := &converter{url: "https://a", v1: v1, client: &http.Client{Transport: answering(answer)}}
		in := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Foo",
			"metadata": map[string]any{"name": "x", "uid": "1", "resourceVersion": "5", "labels": map[string]any{"a": "b"}}}}
		to := schema.GroupVersion{Group: "example.com", Version: "v2"}
		out, err := c.convert(in, to)
		if err != nil {
			return
		}
		if out.GroupVersionKind() != to.WithKind("Foo") || out.GetName() != "x" || out.GetUID() != "1" || out.GetResourceVersion() != "5" {
			t.Fatalf("%s makes %v", answer, out.Object)
		}
	})
}
