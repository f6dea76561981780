package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"knarr/controlplane/apiserver/endpoints/mergerules"
)

// MetaModels are the schemas of objects' metadata, which those of custom kinds
// refer to, in the form of the merge machinery.
func MetaModels() (map[string]*spec.Schema, error) {
	return models(newBuilder(true), reflect.TypeFor[metav1.ObjectMeta]())
}

// Models are the schema of a kind and of all it is made of, in the same form.
func Models(gvk schema.GroupVersionKind, t reflect.Type) (map[string]*spec.Schema, error) {
	b := newBuilder(true)
	b.addKind(mergerules.Name(t), Kind{gvk.Group, gvk.Kind, gvk.Version})
	return models(b, t)
}

func models(b *builder, t reflect.Type) (map[string]*spec.Schema, error) {
	b.define(t)
	data, err := json.Marshal(b.definitions)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	models := map[string]*spec.Schema{}
	if err := json.Unmarshal(data, &models); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	return models, nil
}
