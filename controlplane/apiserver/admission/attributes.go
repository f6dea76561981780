package admission

import (
	"context"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

// Operation is what a write does to its object, admission's word for the verb.
type Operation string

const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes are one write as admission sees it.
type Attributes struct {
	Operation   Operation
	Verb        string // the request's: create, update, patch, apply's patch, ...
	Kind        schema.GroupVersionKind
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string // empty while generateName has not been resolved
	// Object is the incoming object: what Admit may change in place. Nil on
	// delete. For connect it is the options.
	Object runtime.Object
	// Old is the stored object, shared: nobody may change it. Nil on create.
	Old     runtime.Object
	Options runtime.Object // CreateOptions, UpdateOptions, DeleteOptions
	DryRun  bool
	User    user.Info
	// Served are the kinds that the server serves.
	Served ObjectInterfaces

	// Again, set by a mutator, lets all mutators see the object once more;
	// then Round is 1. Memory is what they keep for that, by their name.
	Again  bool
	Round  int
	Memory map[string]any
}

// DisplayName is the object's in refusals, even before a generated name has been
// made.
func (a *Attributes) DisplayName() string {
	if a.Name != "" {
		return a.Name
	}
	if o, ok := a.Object.(metav1.Object); ok {
		if name := o.GetName(); name != "" {
			return name
		}
		if prefix := o.GetGenerateName(); prefix != "" {
			return prefix
		}
	}
	return "Unknown"
}

// Replace gives the incoming object another content.
func (a *Attributes) Replace(obj runtime.Object) {
	reflect.ValueOf(a.Object).Elem().Set(reflect.ValueOf(obj).Elem())
}

// Form is the version in which the object was sent.
func (a *Attributes) Form() Form { return Form{a.Resource, a.Kind} }

// Warn sends the user a warning.
func (a *Attributes) Warn(ctx context.Context, text string) { request.Warn(ctx, text) }

// Annotate writes into the request's audit event.
func (a *Attributes) Annotate(ctx context.Context, key, value string) {
	request.AuditFrom(ctx).Annotate(key, value)
}
