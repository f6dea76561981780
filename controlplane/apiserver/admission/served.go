package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// ObjectInterfaces are what plugins may ask about the kinds served. A write is
// given by its resource.
type ObjectInterfaces interface {
	// Forms are the other versions in which the write's object is served.
	Forms(write schema.GroupVersionResource, subresource string) []Form
	// Convert is obj, one's own, in another version. An object of another kind
	// than the two versions have stays as it is.
	Convert(obj runtime.Object, from, to Form) (runtime.Object, error)
	// New is an empty object of the write's kind, a form's, or a subresource's.
	New(write schema.GroupVersionResource, kind schema.GroupVersionKind) (runtime.Object, error)
	// Default fills what obj, of the write's kind or a form's, leaves out.
	Default(write schema.GroupVersionResource, kind schema.GroupVersionKind, obj runtime.Object)
	// TypeConverter knows the merge schema of the write's kinds.
	TypeConverter(write schema.GroupVersionResource) (managedfields.TypeConverter, error)
	// Stored are the objects of a kind, nil for a kind that is not served.
	Stored(schema.GroupVersionKind) Stored
}

// A Form is another version in which the object of a write is served.
type Form struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Stored are the objects of another kind that is served.
type Stored interface {
	// Resource is its name, for those who ask whether a user may read it.
	Resource() schema.GroupVersionResource
	// Namespaced says that its objects are in namespaces.
	Namespaced() bool
	// Get is one object with its kind, nil when there is none.
	Get(namespace, name string) (runtime.Object, error)
	// List are the objects selected in a namespace, with their kind.
	List(ctx context.Context, namespace string, selector labels.Selector) ([]runtime.Object, error)
}
