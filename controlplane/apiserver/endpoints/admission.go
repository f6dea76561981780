package endpoints

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

// Admission decides about writes. Admit may change a.Object; Validate, which
// sees what will be stored, may not.
type Admission interface {
	Admit(ctx context.Context, a *Attributes) error
	Validate(ctx context.Context, a *Attributes) error
}

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
}

// Warn sends the user a warning.
func (a *Attributes) Warn(ctx context.Context, text string) { request.Warn(ctx, text) }

// Annotate writes into the request's audit event.
func (a *Attributes) Annotate(ctx context.Context, key, value string) {
	request.AuditFrom(ctx).Annotate(key, value)
}

type admitAll struct{}

func (admitAll) Admit(context.Context, *Attributes) error    { return nil }
func (admitAll) Validate(context.Context, *Attributes) error { return nil }

// attributes are this call's, as far as the request tells.
func (c *call) attributes(op Operation, opts runtime.Object, dryRun bool) *Attributes {
	a := &Attributes{
		Operation: op, Verb: c.info.Verb,
		Kind: c.gvk, Resource: c.gvr, Subresource: c.info.Subresource,
		Namespace: c.info.Namespace, Name: c.info.Name,
		Options: opts, DryRun: dryRun, User: request.UserFrom(c.ctx),
	}
	if c.sub != nil && !c.sub.Kind.Empty() {
		a.Kind = c.sub.Kind
	}
	if c.gvr.Resource == "namespaces" && c.gvr.Group == "" {
		a.Namespace = c.info.Name
	}
	return a
}
