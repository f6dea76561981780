package addresspool

import (
	"context"
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// definition is the kind's.
func definition() *apiextensionsv1.CustomResourceDefinition {
	text := func(description string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "string", Description: description, MaxLength: new(int64(253))}
	}
	texts := func(description string, most int64) apiextensionsv1.JSONSchemaProps {
		of := text("")
		return apiextensionsv1.JSONSchemaProps{Type: "array", Description: description, MaxItems: &most, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}}
	}
	announce := text("ARP, for ARP and NDP, or None where the network leads the addresses to the nodes by itself.")
	announce.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"ARP"`)}, {Raw: []byte(`"None"`)}}
	announce.Default = &apiextensionsv1.JSON{Raw: []byte(`"ARP"`)}
	label := text("")
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: Resource.Resource + "." + Resource.Group, Labels: map[string]string{"app.kubernetes.io/managed-by": "knarr"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: Resource.Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: Resource.Resource, Singular: "addresspool", Kind: "AddressPool", ListKind: "AddressPoolList", ShortNames: []string{"pool"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: Resource.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
					{Name: "Addresses", Type: "string", JSONPath: ".spec.addresses"},
					{Name: "Auto Assign", Type: "boolean", JSONPath: ".spec.autoAssign"},
					{Name: "Assigned", Type: "integer", JSONPath: ".status.assigned"},
					{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
				},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Required: []string{"spec"},
					Description: "An AddressPool is addresses for Services of type LoadBalancer.",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Required: []string{"addresses"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"addresses":  texts("Ranges: 192.0.2.0/28, 192.0.2.10-192.0.2.20, or one address.", maxRanges),
							"autoAssign": {Type: "boolean", Default: &apiextensionsv1.JSON{Raw: []byte("true")}, Description: "Whether Services that ask for no address get one of these."},
							"namespaces": texts("The namespaces whose Services get addresses; none means all.", 1000),
							"interfaces": texts("The nodes' interfaces where addresses are announced; none means those of an address's network, or else that of the default route.", 64),
							"nodeSelector": {Type: "object", Description: "Labels of the nodes that announce; none means all nodes.",
								AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &label}},
							"announce": announce,
						}},
						"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"assigned": {Type: "integer", Description: "How many addresses Services have."},
							"problems": texts("What is wrong with the spec.", 1000),
						}},
					},
				}},
			}},
		},
	}
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// Define makes the kind, or gives one that an earlier version has made this version's
// form.
func Define(ctx context.Context, kube *rest.Config) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("define address pools: %w", err)
	}
	q := client.CoreV1().RESTClient()
	want := definition()
	send := func(r *rest.Request) error {
		b, err := json.Marshal(want)
		if err != nil {
			return err
		}
		return r.SetHeader("Content-Type", "application/json").Body(b).Do(ctx).Error()
	}
	err = send(q.Post().AbsPath(definitions))
	if apierrors.IsAlreadyExists(err) {
		var have apiextensionsv1.CustomResourceDefinition
		b, gerr := q.Get().AbsPath(definitions, want.Name).SetHeader("Accept", "application/json").Do(ctx).Raw()
		if gerr == nil {
			gerr = json.Unmarshal(b, &have)
		}
		if err = gerr; err == nil && have.Labels["app.kubernetes.io/managed-by"] == "knarr" && !equality.Semantic.DeepEqual(have.Spec.Versions, want.Spec.Versions) {
			want.ResourceVersion, want.Annotations, want.Spec.Conversion, want.Spec.PreserveUnknownFields = have.ResourceVersion, have.Annotations, have.Spec.Conversion, have.Spec.PreserveUnknownFields
			err = send(q.Put().AbsPath(definitions, want.Name))
		}
	}
	if err != nil {
		return fmt.Errorf("define address pools: %w", err)
	}
	return nil
}
