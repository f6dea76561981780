package openapi

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"knarr/controlplane/apiserver/endpoints/mergerules"
	"knarr/controlplane/apiserver/registry"
)

// Custom is what a resource that is no Go type offers: the JSON schema of its
// kind, OpenAPI v3's form or, for v2, the part of it that v2 can say.
type Custom interface {
	// SchemaID changes when the schema does.
	SchemaID() string
	OpenAPISchema(v2 bool) (name string, schema json.RawMessage)
}

type object = map[string]any

const title, release = "Kubernetes", "1.36"

var bearer = object{"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}

// V3 is the document of one group version.
func V3(gv schema.GroupVersion, resources []registry.Resource) ([]byte, error) {
	b := newBuilder(true)
	_, b.custom = resources[0].(Custom)
	paths := b.paths(resources)
	if b.custom {
		return json.Marshal(object{
			"openapi": "3.0.0", "info": object{"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
			"paths": paths, "components": object{"schemas": b.definitions},
		})
	}
	return b.v3Document(paths)
}

// V2 is the document of everything.
func V2(resources []registry.Resource) ([]byte, error) {
	b := newBuilder(false)
	paths := b.paths(resources)
	for _, t := range infoPaths(resources) {
		b.addInfoPath(paths, &t)
	}
	return json.Marshal(object{
		"swagger":             "2.0",
		"info":                object{"title": title, "version": release},
		"paths":               paths,
		"definitions":         b.definitions,
		"securityDefinitions": object{"BearerToken": bearer},
		"security":            []any{object{"BearerToken": []any{}}},
	})
}

// names gives every kind its definition's name and marks it.
func (b *builder) mark(res registry.Resource) (item, list string) {
	gvk := res.GVK()
	kind := Kind{gvk.Group, gvk.Kind, gvk.Version}
	listKind := Kind{gvk.Group, res.Names().ListKind, gvk.Version}
	if c, ok := res.(Custom); ok {
		name, whole := c.OpenAPISchema(!b.v3)
		b.definitions[name] = &Schema{whole: whole}
		b.define(reflect.TypeFor[metav1.ObjectMeta]())
		list = strings.TrimSuffix(name, gvk.Kind) + listKind.Kind
		b.definitions[list] = &Schema{
			Type: "object", Description: listKind.Kind + " is a list of " + gvk.Kind, Required: []string{"items"}, Kinds: []Kind{listKind},
			Properties: map[string]*Schema{
				"apiVersion": {Type: "string", Description: docs(reflect.TypeFor[metav1.TypeMeta]())["apiVersion"]},
				"kind":       {Type: "string", Description: docs(reflect.TypeFor[metav1.TypeMeta]())["kind"]},
				"metadata":   b.refTo(b.define(reflect.TypeFor[metav1.ListMeta]()), "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"),
				"items": {Type: "array", Items: &Schema{Ref: b.ref(name)},
					Description: "List of " + res.Names().Plural + ". More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"},
			},
		}
		return name, list
	}
	t := reflect.TypeOf(res.New()).Elem()
	item = mergerules.Name(t)
	b.addKind(item, kind)
	if !res.IsVirtual() || res.Supports("list") {
		lt := reflect.TypeOf(res.NewList()).Elem()
		list = mergerules.Name(lt)
		b.addKind(list, listKind)
		b.define(lt)
	}
	b.define(t)
	return item, list
}

// elsewhere are the group versions known to upstream's server, but not to its
// clients' scheme.
var elsewhere = []schema.GroupVersion{
	{Group: "admission.k8s.io", Version: "v1"}, {Group: "admission.k8s.io", Version: "v1beta1"},
	{Group: "apiextensions.k8s.io", Version: "v1beta1"}, {Group: "apiregistration.k8s.io", Version: "v1beta1"},
	{Group: "imagepolicy.k8s.io", Version: "v1alpha1"},
}

// markEverywhere names the kinds that every group version has.
func (b *builder) markEverywhere() {
	for _, o := range []runtime.Object{&metav1.DeleteOptions{}, &metav1.WatchEvent{}} {
		name := mergerules.Name(reflect.TypeOf(o).Elem())
		s := b.definitions[name]
		gvks, _, err := scheme.Scheme.ObjectKinds(o)
		if s == nil || err != nil {
			continue
		}
		s.Kinds = nil
		if !b.v3 {
			for _, gv := range elsewhere {
				gvks = append(gvks, gv.WithKind(gvks[0].Kind))
			}
		}
		for _, k := range gvks {
			if b.names(k.GroupVersion()) {
				s.Kinds = append(s.Kinds, Kind{k.Group, k.Kind, k.Version})
			}
		}
		slices.SortFunc(s.Kinds, func(x, y Kind) int { return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Version, y.Version)) })
	}
}

// names says that the document names, in gv too, the kinds that every group
// version has.
func (b *builder) names(gv schema.GroupVersion) bool {
	switch {
	case !b.v3:
		return true
	case b.custom: // upstream's server of these knows its clients' scheme alone
		return gv.Group != apiextensionsv1.GroupName && gv.Group != apiregistrationv1.GroupName
	}
	return b.versions[gv] || gv == corev1.SchemeGroupVersion
}

// refTo is a described reference: v3 wants it apart from its description.
func (b *builder) refTo(name, text string) *Schema {
	if b.v3 {
		return &Schema{AllOf: []*Schema{{Ref: b.ref(name)}}, Description: text}
	}
	return &Schema{Ref: b.ref(name), Description: text}
}

func (b *builder) addKind(name string, k Kind) {
	if slices.Contains(b.kinds[name], k) {
		return
	}
	b.kinds[name] = append(b.kinds[name], k)
	if s := b.definitions[name]; s != nil {
		s.Kinds = b.kinds[name]
	}
}

// paths are all endpoints of resources.
func (b *builder) paths(resources []registry.Resource) object {
	b.addKind(mergerules.Name(reflect.TypeFor[metav1.Status]()), Kind{"", "Status", "v1"})
	out := object{}
	for _, res := range resources {
		b.mark(res)
	}
	for _, res := range resources {
		b.resource(out, res)
		if gv := res.GVR().GroupVersion(); !b.versions[gv] {
			b.versions[gv] = true
			if _, custom := res.(Custom); !custom {
				b.versionPath(out, gv)
			}
		}
	}
	b.markEverywhere()
	return out
}

// An endpoint is what the operations of one path share.
type endpoint struct {
	b                *builder
	res              registry.Resource
	gvk              schema.GroupVersionKind // of the body
	body, list       string                  // definitions
	scope, tag, name string
	sub              string
	custom           bool // of a kind that is no Go type: upstream's own server for these tells less
}

func (b *builder) resource(out object, res registry.Resource) {
	item, list := b.mark(res)
	gvr, gvk := res.GVR(), res.GVK()
	root := "/apis/" + gvr.Group + "/" + gvr.Version
	if gvr.Group == "" {
		root = "/api/" + gvr.Version
	}
	tag := tagOf(gvr.Group)
	_, custom := res.(Custom)
	e := &endpoint{b: b, custom: custom, res: res, gvk: gvk, body: item, list: list, tag: tag + "_" + gvr.Version, name: gvk.Kind}
	base := root + "/" + gvr.Resource
	if res.Namespaced() {
		base = root + "/namespaces/{namespace}/" + gvr.Resource
		e.scope = "Namespaced"
		if res.Supports("list") {
			all := *e
			all.scope = ""
			out[root+"/"+gvr.Resource] = object{"get": all.operation("list", "list", gvk.Kind+"ForAllNamespaces"), "parameters": b.parameters("", "pretty")}
		}
	}
	collection := object{"parameters": e.pathParameters(false)}
	if res.Supports("list") {
		collection["get"] = e.operation("list", "list", "")
	}
	if res.Supports("create") {
		collection["post"] = e.operation("create", "post", "")
	}
	if res.Supports("deletecollection") {
		collection["delete"] = e.operation("deletecollection", "deletecollection", "")
	}
	if len(collection) > 1 {
		out[base] = collection
	}
	if res.Supports("watch") && !custom {
		e.watches(out, root, strings.TrimPrefix(base, root))
	}
	one := object{"parameters": e.pathParameters(true)}
	for _, v := range []struct{ verb, method, action string }{{"get", "get", "get"}, {"update", "put", "put"}, {"patch", "patch", "patch"}, {"delete", "delete", "delete"}} {
		if res.Supports(v.verb) {
			one[v.method] = e.operation(v.verb, v.action, "")
		}
	}
	if len(one) > 1 {
		out[base+"/{name}"] = one
	}
	for _, sub := range res.Subresources() {
		e.subresource(out, base, sub)
	}
}

func (e *endpoint) subresource(out object, base string, sub registry.Sub) {
	own := *e
	own.sub = title1(sub.Name)
	if !e.custom {
		own.gvk = sub.Kind
	}
	path := base + "/{name}/" + sub.Name
	if flows[sub.Name] != nil {
		own.connect(out, path, sub)
		return
	}
	if sub.Name == "log" {
		own.log(out, path)
		return
	}
	if t := typeOf(sub.Kind); t != nil {
		own.body = mergerules.Name(t)
		e.b.addKind(own.body, Kind{sub.Kind.Group, sub.Kind.Kind, sub.Kind.Version})
		e.b.define(t)
	}
	methods := map[string]string{"get": "get", "update": "put", "patch": "patch", "create": "post"}
	one := object{"parameters": own.pathParameters(true)}
	for _, verb := range sub.Verbs {
		if m := methods[verb]; m != "" {
			one[m] = own.operation(verb, m, "")
		}
	}
	if len(one) > 1 {
		out[path] = one
	}
}

// watches are the paths of old that do what ?watch does.
func (e *endpoint) watches(out object, root, base string) {
	kind := e.gvk.Kind
	at := func(path, verb, name string, params []object) {
		out[root+"/watch"+path] = object{"get": e.operation(verb, verb, name), "parameters": params}
	}
	if e.scope != "" {
		all := *e
		all.scope = ""
		out[root+"/watch/"+e.res.GVR().Resource] = object{"get": all.operation("watchlist", "watchlist", kind+"ListForAllNamespaces"), "parameters": e.b.parameters("", "pretty")}
	}
	at(base, "watchlist", kind+"List", e.pathParameters(false))
	at(base+"/{name}", "watch", "", e.pathParameters(true))
}

// tagOf is what a group is called in tags and ids.
func tagOf(group string) string {
	first, rest, _ := strings.Cut(strings.TrimSuffix(group, ".k8s.io"), ".")
	if first == "" {
		return "core"
	}
	for part := range strings.SplitSeq(rest, ".") {
		first += title1(part)
	}
	return first
}

func title1(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
