package extension

import (
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// A definition is one CustomResourceDefinition as it is served. It keeps all
// but the schemas, which are big: they are read again when first needed.
type definition struct {
	crd     *apiextensionsv1.CustomResourceDefinition // without schemas
	read    func() (*apiextensionsv1.CustomResourceDefinition, error)
	storage string // the version objects are stored in
	webhook *converter
	kept    *keptRules
	ending  bool
	kinds   []*kind // of the versions served

	shapes sync.Map // version -> func() (*shape, error)
	types  func() (managedfields.TypeConverter, error)
}

// newDefinition makes what crd declares, with the names that it was given. read
// returns it whole.
func newDefinition(crd *apiextensionsv1.CustomResourceDefinition, names apiextensionsv1.CustomResourceDefinitionNames,
	read func() (*apiextensionsv1.CustomResourceDefinition, error), webhook *converter, kept *keptRules) *definition {
	d := &definition{read: read, webhook: webhook, kept: kept, ending: apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)}
	d.crd = withoutSchemas(crd)
	d.crd.Status.AcceptedNames = names
	for i := range d.crd.Spec.Versions {
		v := &d.crd.Spec.Versions[i]
		if v.Storage {
			d.storage = v.Name
		}
		d.shapes.Store(v.Name, sync.OnceValues(func() (*shape, error) { return d.compile(v.Name) }))
	}
	d.types = sync.OnceValues(d.makeTypes)
	for i := range d.crd.Spec.Versions {
		if v := &d.crd.Spec.Versions[i]; v.Served {
			d.kinds = append(d.kinds, newKind(d, v))
		}
	}
	return d
}

// withoutSchemas is a copy that shares nothing big.
func withoutSchemas(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	c := *crd
	c.ManagedFields, c.Annotations = nil, nil
	c.Spec.Versions = make([]apiextensionsv1.CustomResourceDefinitionVersion, len(crd.Spec.Versions))
	for i, v := range crd.Spec.Versions {
		v.Schema = nil
		c.Spec.Versions[i] = *v.DeepCopy()
	}
	c.Spec.Names, c.Status = *crd.Spec.Names.DeepCopy(), *crd.Status.DeepCopy()
	c.Spec.Conversion = crd.Spec.Conversion.DeepCopy()
	return &c
}

// prefix is where objects are stored under /registry/.
func (d *definition) prefix() string { return d.crd.Spec.Group + "/" + d.crd.Spec.Names.Plural }

// shape is the compiled schema of a version.
func (d *definition) shape(version string) (*shape, error) {
	f, ok := d.shapes.Load(version)
	if !ok {
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s/%s", d.crd.Spec.Group, version)
	}
	return f.(func() (*shape, error))()
}

// schemaOf is the schema of a version, nil when it has none.
func (d *definition) schemaOf(version string) (*apiextensions.JSONSchemaProps, error) {
	crd, err := d.read()
	if err != nil {
		return nil, err
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != version || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		out := &apiextensions.JSONSchemaProps{}
		return out, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, out, nil)
	}
	return nil, nil
}

// sameServed says that a new state of the definition is served as this one is.
func (d *definition) sameServed(crd *apiextensionsv1.CustomResourceDefinition, names apiextensionsv1.CustomResourceDefinitionNames) bool {
	return d.crd.UID == crd.UID && d.crd.Generation == crd.Generation && sameNames(d.crd.Status.AcceptedNames, names) &&
		d.ending == apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
}

var definitionsGVR = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

func groupResource(crd *apiextensionsv1.CustomResourceDefinition) metav1.GroupResource {
	return metav1.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}
