package endpoints

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// attributes are this call's, as far as the request contains them.
func (c *call) attributes(op admission.Operation, opts runtime.Object, dryRun bool) *admission.Attributes {
	a := &admission.Attributes{
		Operation: op, Verb: c.info.Verb,
		Kind: c.gvk, Resource: c.gvr, Subresource: c.info.Subresource,
		Namespace: c.info.Namespace, Name: c.info.Name,
		Options: opts, DryRun: dryRun, User: request.UserFrom(c.ctx),
		Served: c.s.table.Load(),
	}
	if c.sub != nil && !c.sub.Kind.Empty() {
		a.Kind = c.sub.Kind
	}
	if c.gvr.Resource == "namespaces" && c.gvr.Group == "" {
		a.Namespace = c.info.Name
	}
	return a
}

type admitAll struct{}

func (admitAll) Admit(context.Context, *admission.Attributes) error    { return nil }
func (admitAll) Validate(context.Context, *admission.Attributes) error { return nil }

// Forms is for admission, as the methods that follow.
func (t *table) Forms(write schema.GroupVersionResource, subresource string) []admission.Form {
	own := t.entries[write]
	if own == nil || own.store == nil {
		return nil
	}
	var out []admission.Form
	for _, e := range t.forms[own.store] {
		if e == own {
			continue
		}
		f := admission.Form{Resource: e.gvr, Kind: e.gvk}
		if subresource != "" {
			sub := e.subs[subresource]
			if sub == nil {
				continue
			}
			f.Kind = sub.Kind
		}
		out = append(out, f)
	}
	return out
}

func (t *table) Convert(obj runtime.Object, write, to admission.Form) (runtime.Object, error) {
	from, into := t.entries[write.Resource], t.entries[to.Resource]
	o, ok := obj.(registry.Object)
	if !ok || from == nil || into == nil || write.Kind != from.gvk || to.Kind != into.gvk {
		return obj, nil
	}
	if from.custom != nil {
		return from.custom.Convert(o.(*unstructured.Unstructured), into.gvr.GroupVersion())
	}
	o, err := from.hub(o)
	if err == nil && into.fromHub != nil {
		o = into.fromHub(o)
	}
	return o, err
}

func (t *table) New(write schema.GroupVersionResource, kind schema.GroupVersionKind) (runtime.Object, error) {
	if e := t.formOf(write, kind); e != nil {
		return e.res.New(), nil
	}
	return scheme.Scheme.New(kind)
}

func (t *table) Default(write schema.GroupVersionResource, kind schema.GroupVersionKind, obj runtime.Object) {
	if e := t.formOf(write, kind); e != nil {
		e.res.Defaults(obj.(registry.Object))
	}
}

// formOf is the version of the write's object that has that kind.
func (t *table) formOf(write schema.GroupVersionResource, kind schema.GroupVersionKind) *entry {
	own := t.entries[write]
	if own == nil || own.gvk == kind {
		return own
	}
	for _, f := range t.Forms(write, "") {
		if f.Kind == kind {
			return t.entries[f.Resource]
		}
	}
	return nil
}

func (t *table) TypeConverter(write schema.GroupVersionResource) (managedfields.TypeConverter, error) {
	if e := t.entries[write]; e != nil {
		return e.types()
	}
	return typeConverter(), nil
}

func (t *table) Stored(kind schema.GroupVersionKind) admission.Stored {
	for _, res := range t.resources {
		if res.GVK() != kind {
			continue
		}
		if e := t.entries[res.GVR()]; e.store != nil {
			return stored{e}
		}
	}
	return nil
}

// stored are the objects of an entry, for admission.
type stored struct{ *entry }

func (s stored) Resource() schema.GroupVersionResource { return s.gvr }
func (s stored) Namespaced() bool                      { return s.namespaced }

func (s stored) Get(namespace, name string) (runtime.Object, error) {
	rec := s.store.Peek(s.keyOf(namespace, name))
	if rec == nil {
		return nil, nil
	}
	return s.whole(rec)
}

func (s stored) List(ctx context.Context, namespace string, selector labels.Selector) (out []runtime.Object, err error) {
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

func (s stored) whole(rec *watchcache.Record) (runtime.Object, error) {
	obj, err := s.object(rec)
	if err != nil {
		return nil, err
	}
	obj = copyOf(obj)
	setKind(obj, s.gvk)
	return obj, nil
}
