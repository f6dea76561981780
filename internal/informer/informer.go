// Package informer holds what every handler and every cache of client-go's
// informers needs. It reads the objects and events it is given, and writes
// only into objects that are not yet in a cache.
package informer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Object is the object of an event. For a deletion that the watch missed, it
// is the last state that the cache had.
func Object(event any) any {
	if gone, ok := event.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return event
}

// Same says that an update is one of one object. Where a list follows a watch that
// was cut, an object that was deleted and one made anew under its name meanwhile
// come as one update.
func Same(old, now any) bool {
	a, ok := old.(metav1.Object)
	b, is := now.(metav1.Object)
	return ok && is && a.GetUID() == b.GetUID()
}

// TrimMetadata is a transform that drops managed fields and annotations, for
// informers whose readers use neither, so that their caches stay small.
func TrimMetadata(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return o, nil
}

// WithoutManagedFields drops from what an informer keeps the record of who set which
// field: no component reads it, and it can be half of an object.
func WithoutManagedFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}
