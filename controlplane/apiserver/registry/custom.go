package registry

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// A Custom resource is one version of a kind that has no Go type: a
// CustomResourceDefinition declares it. Its objects are *unstructured.Unstructured
// and carry kind and apiVersion everywhere.
type Custom interface {
	Resource
	// Coerce prunes what a client has sent; the object is the caller's. unknown
	// are the paths of what was dropped, if they are wanted.
	Coerce(obj *unstructured.Unstructured, wanted bool) (unknown []string, err error)
	// Served makes of an object as it is stored, which is given away, what this
	// version serves.
	Served(obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Stored makes of an object of this version, which it leaves as it is,
	// one of the version that is stored.
	Stored(obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Convert makes an object of this version one of another.
	Convert(obj *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error)
	// Types are how objects are merged by server-side apply.
	Types() (managedfields.TypeConverter, error)
	// Notices are warnings that every request gets.
	Notices() []string
	// Ending says that the definition is being deleted: nothing can be created.
	Ending() bool
}
