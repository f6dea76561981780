package registry

import (
	"context"
	"encoding/json"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"

	"knarr/controlplane/apiserver/registry/definition"
)

// The one built-in kind that client-go's clientset does not have.
var _ = apiextensionsv1.AddToScheme(scheme.Scheme)

type crd = *apiextensionsv1.CustomResourceDefinition

var customResourceDefinitions = &Kind[crd]{
	GroupVersionKind: apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"),
	Plural:           "customresourcedefinitions",
	Metadata:         Plain,
	Short:            []string{"crd", "crds"},
	Categories:       []string{"api-extensions"},
	Cluster:          true,
	Conditional:      true,
	Prefix:           "apiextensions.k8s.io/customresourcedefinitions",
	JSON:             true,
	Text:             &Text{apiextensionsv1beta1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), storedDefinition, readDefinition},
	Default:          defaultDefinition,
	Prepare: func(_ context.Context, c, old crd) {
		if old == nil {
			c.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
			c.Generation = 1
		} else {
			c.Status = *old.Status.DeepCopy()
			if !same(c.Spec, old.Spec) {
				c.Generation = old.Generation + 1
			}
		}
		noteStored(c)
	},
	NameRuleOf: func(c crd) func(string, bool) []string {
		want := c.Spec.Names.Plural + "." + c.Spec.Group
		return func(name string, prefix bool) []string {
			msgs := NameIsDNSSubdomain(name, prefix)
			if name != want {
				msgs = append(msgs, `must be spec.names.plural+"."+spec.group`)
			}
			return msgs
		}
	},
	Validate: func(ctx context.Context, c, old crd) field.ErrorList { return definition.Validate(ctx, c, old) },
	Warn:     func(_ context.Context, c, old crd) []string { return definition.Warnings(c, old) },
	Sub: []Subresource[crd]{statusOf(
		func(c, old crd) { c.Spec = *old.Spec.DeepCopy() },
		func(_ context.Context, c, _ crd) field.ErrorList { return definition.ValidateStatus(c) },
	)},
}

// storedDefinition is a definition in the version upstream stores, v1beta1.
func storedDefinition(o Object) (Object, error) {
	var hub apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(o.(crd), &hub, nil); err != nil {
		return nil, err
	}
	out := &apiextensionsv1beta1.CustomResourceDefinition{}
	err := apiextensionsv1beta1.Convert_apiextensions_CustomResourceDefinition_To_v1beta1_CustomResourceDefinition(&hub, out, nil)
	out.SetGroupVersionKind(apiextensionsv1beta1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return out, err
}

// readDefinition reads a definition as it is stored, in either version.
func readDefinition(data []byte) (Object, error) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(data, &meta); err != nil {
		return nil, err
	}
	out := &apiextensionsv1.CustomResourceDefinition{}
	if meta.APIVersion != apiextensionsv1beta1.SchemeGroupVersion.String() {
		return out, kjson.UnmarshalCaseSensitivePreserveInts(data, out)
	}
	old := &apiextensionsv1beta1.CustomResourceDefinition{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, old); err != nil {
		return nil, err
	}
	apiextensionsv1beta1.SetDefaults_CustomResourceDefinition(old)
	var hub apiextensions.CustomResourceDefinition
	if err := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(old, &hub, nil); err != nil {
		return nil, err
	}
	return out, apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(&hub, out, nil)
}

// noteStored notes the storage version among those that objects are stored in.
func noteStored(c crd) {
	for _, v := range c.Spec.Versions {
		if !v.Storage {
			continue
		}
		for _, name := range c.Status.StoredVersions {
			if name == v.Name {
				return
			}
		}
		c.Status.StoredVersions = append(c.Status.StoredVersions, v.Name)
		return
	}
}

func defaultDefinition(c crd) {
	s := &c.Spec
	if s.Names.Singular == "" {
		s.Names.Singular = strings.ToLower(s.Names.Kind)
	}
	if s.Names.ListKind == "" && s.Names.Kind != "" {
		s.Names.ListKind = s.Names.Kind + "List"
	}
	if s.Conversion == nil {
		s.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	}
	if w := s.Conversion.Webhook; w != nil && w.ClientConfig != nil && w.ClientConfig.Service != nil && w.ClientConfig.Service.Port == nil {
		w.ClientConfig.Service.Port = new(int32(443))
	}
	if len(c.Status.StoredVersions) == 0 {
		noteStored(c)
	}
}
