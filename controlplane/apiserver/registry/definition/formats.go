package definition

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Warnings name the formats that are not checked; those of the old object are not repeated.
func Warnings(crd, old *apiextensionsv1.CustomResourceDefinition) (out []string) {
	before := sets.New[string]()
	if old != nil {
		before.Insert(formats(old)...)
	}
	for _, f := range formats(crd) {
		if !before.Has(f) {
			out = append(out, fmt.Sprintf("unrecognized format %q", f))
		}
	}
	return out
}

// formats are those of a definition that are not recognised.
func formats(crd *apiextensionsv1.CustomResourceDefinition) (out []string) {
	now, err := internal(crd)
	if err != nil {
		return nil
	}
	anySchema(&now.Spec, func(s *apiextensions.JSONSchemaProps) bool {
		if s.Format != "" {
			one := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: []string{s.Type}}}
			out = append(out, apiservervalidation.GetUnrecognizedFormats(one, environment.DefaultCompatibilityVersion())...)
		}
		return false
	})
	return out
}
