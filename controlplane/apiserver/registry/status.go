package registry

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/internal/equal"
)

// partVerbs are those of a subresource that is a second view of an object.
var partVerbs = []string{"get", "patch", "update"}

// statusOf is the status subresource: keep copies from old all that a status
// write may not touch; validate may be nil.
func statusOf[T Object](keep func(obj, old T), validate func(ctx context.Context, obj, old T) field.ErrorList) Subresource[T] {
	return Subresource[T]{
		Name:     "status",
		Verbs:    partVerbs,
		Prepare:  func(_ context.Context, obj, old T) { keep(obj, old) },
		Validate: validate,
	}
}

// action is a subresource served by a handler of its own.
func action[T Object](name string, verbs ...string) Subresource[T] {
	return Subresource[T]{Name: name, Verbs: verbs}
}

// same reports whether two values mean the same: nil and empty do, and so do
// quantities written differently.
func same(a, b any) bool { return equal.Objects(a, b) }

// spec is the Prepare of a kind with a status: reset empties the status of a
// new object, keep takes it from the old one, and changed (nil: never) says
// whether an update makes a new generation.
func spec[T Object](reset func(obj T), keep func(obj, old T), changed func(obj, old T) bool) func(context.Context, T, T) {
	return func(_ context.Context, obj, old T) {
		if reflect.ValueOf(old).IsNil() {
			reset(obj)
			if changed != nil {
				obj.SetGeneration(1)
			}
			return
		}
		keep(obj, old)
		if changed == nil {
			return
		}
		obj.SetGeneration(old.GetGeneration())
		if changed(obj, old) {
			obj.SetGeneration(old.GetGeneration() + 1)
		}
	}
}
