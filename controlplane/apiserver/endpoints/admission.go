package endpoints

import (
	"context"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
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

	// Again, set by a mutator, lets all mutators see the object once more;
	// then Round is 1. Memory is what they keep for that, by their name.
	Again  bool
	Round  int
	Memory map[string]any

	entry *entry
	table *table
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

// A Form is another version in which the object of a write is served.
type Form struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
	from, to *entry
}

// Forms are the other versions that the object is served in.
func (a *Attributes) Forms() []Form {
	if a.entry == nil || a.entry.store == nil {
		return nil
	}
	var out []Form
	for _, res := range a.table.resources {
		e := a.table.entries[res.GVR()]
		if e == a.entry || e.store != a.entry.store {
			continue
		}
		f := Form{Resource: e.gvr, Kind: e.gvk, from: a.entry, to: e}
		if a.Subresource != "" {
			sub := e.subs[a.Subresource]
			if sub == nil {
				continue
			}
			if sub.Kind != e.gvk { // it has the same kind in every version
				f.Kind, f.from, f.to = sub.Kind, nil, nil
			}
		}
		out = append(out, f)
	}
	return out
}

// Convert is obj, one's own, in the form.
func (f Form) Convert(obj runtime.Object) (runtime.Object, error) { return convert(obj, f.from, f.to) }

// Back is obj as the write has it.
func (f Form) Back(obj runtime.Object) (runtime.Object, error) { return convert(obj, f.to, f.from) }

func convert(obj runtime.Object, from, to *entry) (runtime.Object, error) {
	o, ok := obj.(registry.Object)
	if !ok || from == to {
		return obj, nil
	}
	if from.custom != nil {
		return from.custom.Convert(o.(*unstructured.Unstructured), to.gvr.GroupVersion())
	}
	o, err := from.hub(o)
	if err == nil && to.fromHub != nil {
		o = to.fromHub(o)
	}
	return o, err
}

// New is an empty object of that kind: the write's, or a form's.
func (a *Attributes) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	if e := a.entryOf(kind); e != nil {
		return e.res.New(), nil
	}
	return scheme.Scheme.New(kind)
}

// Default fills what obj, of that kind, leaves out.
func (a *Attributes) Default(kind schema.GroupVersionKind, obj runtime.Object) {
	if e := a.entryOf(kind); e != nil {
		e.res.Defaults(obj.(registry.Object))
	}
}

func (a *Attributes) entryOf(kind schema.GroupVersionKind) *entry {
	if a.entry == nil || a.entry.gvk == kind {
		return a.entry
	}
	for _, f := range a.Forms() {
		if f.Kind == kind {
			return f.to
		}
	}
	return nil
}

// Stored are the objects of another kind that is served.
type Stored struct{ *entry }

// Stored is nil for a kind that is not served.
func (a *Attributes) Stored(kind schema.GroupVersionKind) *Stored {
	if a.table == nil {
		return nil
	}
	for _, res := range a.table.resources {
		if res.GVK() != kind {
			continue
		}
		if e := a.table.entries[res.GVR()]; e.store != nil {
			return &Stored{e}
		}
	}
	return nil
}

// Resource is its name, for those who ask whether a user may read it.
func (s *Stored) Resource() schema.GroupVersionResource { return s.gvr }

// Namespaced says that its objects are in namespaces.
func (s *Stored) Namespaced() bool { return s.namespaced }

// Get is one object with its kind, nil when there is none.
func (s *Stored) Get(namespace, name string) (runtime.Object, error) {
	rec := s.store.Peek(s.keyOf(namespace, name))
	if rec == nil {
		return nil, nil
	}
	return s.whole(rec)
}

// List are the objects selected in a namespace, with their kind.
func (s *Stored) List(ctx context.Context, namespace string, selector labels.Selector) (out []runtime.Object, err error) {
	if !s.namespaced {
		namespace = ""
	}
	found, err := s.store.List(ctx, watchcache.Query{Namespace: namespace, Labels: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	for _, rec := range found.Records {
		obj, err := s.whole(rec)
		if err != nil {
			return nil, err
		}
		out = append(out, obj)
	}
	return out, nil
}

func (s *Stored) whole(rec *watchcache.Record) (runtime.Object, error) {
	obj, err := s.object(rec)
	if err != nil {
		return nil, err
	}
	obj = copyOf(obj)
	setKind(obj, s.gvk)
	return obj, nil
}

// TypeConverter knows the merge schema of the write's kinds.
func (a *Attributes) TypeConverter() (managedfields.TypeConverter, error) {
	if a.entry != nil {
		return a.entry.types()
	}
	return typeConverter(), nil
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
		entry: c.entry, table: c.s.table.Load(),
	}
	if c.sub != nil && !c.sub.Kind.Empty() {
		a.Kind = c.sub.Kind
	}
	if c.gvr.Resource == "namespaces" && c.gvr.Group == "" {
		a.Namespace = c.info.Name
	}
	return a
}
