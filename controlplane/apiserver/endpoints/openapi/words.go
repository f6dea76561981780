package openapi

import (
	"reflect"
	"strings"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apiregistration "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"knarr/controlplane/apiserver/endpoints/mergerules"
)

type documented interface{ SwaggerDoc() map[string]string }

// docs are the descriptions of t's fields, and its own by the empty name.
func docs(t reflect.Type) map[string]string {
	if d, ok := reflect.Zero(t).Interface().(documented); ok {
		return d.SwaggerDoc()
	}
	return generated()[mergerules.Name(t)]
}

// generated are the descriptions of the types that carry none: custom resource
// definitions, API services, and what all kinds are made of.
var generated = sync.OnceValue(func() map[string]map[string]string {
	out := map[string]map[string]string{}
	ref := func(string) spec.Ref { return spec.Ref{} }
	for _, of := range []func(common.ReferenceCallback) map[string]common.OpenAPIDefinition{
		apiextensions.GetOpenAPIDefinitions, apiregistration.GetOpenAPIDefinitions,
	} {
		for name, d := range of(ref) {
			if strings.HasPrefix(name, "io.k8s.api.") {
				continue
			}
			words := map[string]string{"": d.Schema.Description}
			for field, p := range d.Schema.Properties {
				words[field], _, _ = strings.Cut(p.Description, "\n\nPossible enum values:")
			}
			out[name] = words
		}
	}
	return out
})
