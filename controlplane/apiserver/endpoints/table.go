package endpoints

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// A table is all kinds served, ready to be looked up. It is never changed;
// another one takes its place.
type table struct {
	resources []registry.Resource
	entries   map[schema.GroupVersionResource]*entry
	versions  map[schema.GroupVersion]bool
	builtin   map[schema.GroupVersion]bool      // those of them with a built-in kind
	forms     map[*watchcache.Resource][]*entry // the versions in which a store's objects are served
	discovery *discovery
	openapi   *openAPI
}

// entryOf is the entry of a resource that is served already.
func (t *table) entryOf(res registry.Resource) *entry {
	if t == nil {
		return nil
	}
	if e := t.entries[res.GVR()]; e != nil && e.res == res {
		return e
	}
	return nil
}

// An entry is one kind served, with what each request would otherwise
// compute.
type entry struct {
	res        registry.Resource
	gvk        schema.GroupVersionKind
	gvr        schema.GroupVersionResource
	qualified  string // "pods", "deployments.apps"
	namespaced bool
	deprecated string
	custom     registry.Custom // nil for built-in kinds
	served     *watchcache.View
	store      *watchcache.Resource
	toHub      func(registry.Object) registry.Object
	fromHub    func(registry.Object) registry.Object
	subs       map[string]*registry.Sub
	labels     map[string]bool // field labels
	jsonHead   []byte          // {"kind":"Pod","apiVersion":"v1",
	listHead   []byte          // {"kind":"PodList","apiVersion":"v1","metadata":{
	managers   *managers
}

func newTable(s *Server, resources []registry.Resource, old *table) *table {
	t := &table{
		resources: resources,
		entries:   make(map[schema.GroupVersionResource]*entry, len(resources)),
		versions:  map[schema.GroupVersion]bool{},
		builtin:   map[schema.GroupVersion]bool{},
		forms:     map[*watchcache.Resource][]*entry{},
	}
	for _, res := range resources {
		e := old.entryOf(res)
		if e == nil {
			e = newEntry(s, res)
		}
		t.entries[e.gvr] = e
		t.versions[e.gvr.GroupVersion()] = true
		if e.custom == nil {
			t.builtin[e.gvr.GroupVersion()] = true
		}
		if e.store != nil {
			t.forms[e.store] = append(t.forms[e.store], e)
		}
	}
	t.discovery = newDiscovery(s, t)
	t.openapi = newOpenAPI(s, t)
	return t
}

func newEntry(s *Server, res registry.Resource) *entry {
	gvk, gvr := res.GVK(), res.GVR()
	e := &entry{
		res: res, gvk: gvk, gvr: gvr,
		qualified:  gvr.GroupResource().String(),
		namespaced: res.Namespaced(),
		deprecated: res.Traits().Deprecated,
		subs:       map[string]*registry.Sub{},
		labels:     map[string]bool{},
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	e.jsonHead = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
	e.listHead = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{`, res.Names().ListKind, apiVersion)
	for _, sub := range res.Subresources() {
		e.subs[sub.Name] = &sub
	}
	if res.IsVirtual() {
		return e
	}
	for _, label := range res.FieldLabels() {
		e.labels[label] = true
	}
	storage := res.Storage()
	e.toHub, e.fromHub = storage.ToHub, storage.FromHub
	if s.cfg.Cache != nil {
		e.store = s.cfg.Cache.At(storage.Prefix)
	}
	e.setCustom(res)
	e.managers = newManagers(e)
	return e
}

// hub is the stored form of obj.
func (e *entry) hub(obj registry.Object) (registry.Object, error) {
	switch {
	case e.custom != nil:
		return e.customHub(obj)
	case e.toHub != nil:
		return e.toHub(obj), nil
	}
	return obj, nil
}

// object is the record's object in the version served. It may be the shared
// one: nobody may change it.
func (e *entry) object(rec *watchcache.Record) (registry.Object, error) {
	if e.served != nil {
		obj, _, err := rec.See(e.served)
		return obj, err
	}
	obj, err := rec.Object()
	if err != nil || e.fromHub == nil {
		return obj, err
	}
	return e.fromHub(obj), nil
}

// copy is an object of one's own.
func copyOf(obj registry.Object) registry.Object {
	return obj.DeepCopyObject().(registry.Object)
}

// setKind writes kind and apiVersion into an object of one's own.
func setKind(obj runtime.Object, gvk schema.GroupVersionKind) {
	obj.GetObjectKind().SetGroupVersionKind(gvk)
}
