package openapi

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

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

const title, version = "Kubernetes", "1.36"

// V3 is the document of one group version.
func V3(gv schema.GroupVersion, resources []registry.Resource) ([]byte, error) {
	b := newBuilder(true)
	paths := b.paths(resources)
	return json.Marshal(object{
		"openapi": "3.0.0",
		"info":    object{"title": title, "version": version},
		"paths":   paths,
		"components": object{
			"schemas": b.definitions,
			"securitySchemes": object{"BearerToken": object{
				"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
		},
	})
}

// V2 is the document of everything.
func V2(resources []registry.Resource) ([]byte, error) {
	b := newBuilder(false)
	paths := b.paths(resources)
	return json.Marshal(object{
		"swagger":     "2.0",
		"info":        object{"title": title, "version": version},
		"paths":       paths,
		"definitions": b.definitions,
		"securityDefinitions": object{"BearerToken": object{
			"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
		"security": []any{object{"BearerToken": []any{}}},
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
		for _, k := range gvks {
			if gv := k.GroupVersion(); !b.v3 || b.versions[gv] || gv == corev1.SchemeGroupVersion {
				s.Kinds = append(s.Kinds, Kind{k.Group, k.Kind, k.Version})
			}
		}
		slices.SortFunc(s.Kinds, func(x, y Kind) int { return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Version, y.Version)) })
	}
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
			b.versionPath(out, gv)
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
}

func (b *builder) resource(out object, res registry.Resource) {
	item, list := b.mark(res)
	gvr, gvk := res.GVR(), res.GVK()
	root := "/apis/" + gvr.Group + "/" + gvr.Version
	if gvr.Group == "" {
		root = "/api/" + gvr.Version
	}
	tag := tagOf(gvr.Group)
	e := &endpoint{b: b, res: res, gvk: gvk, body: item, list: list, tag: tag + "_" + gvr.Version, name: gvk.Kind}
	base := root + "/" + gvr.Resource
	if res.Namespaced() {
		base = root + "/namespaces/{namespace}/" + gvr.Resource
		e.scope = "Namespaced"
		if res.Supports("list") {
			all := *e
			all.scope = ""
			out[root+"/"+gvr.Resource] = object{"get": all.operation("list", "list", gvk.Kind+"ForAllNamespaces"), "parameters": b.parameters("pretty")}
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
	if res.Supports("watch") {
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
	own.sub, own.gvk = title1(sub.Name), sub.Kind
	if t := typeOf(sub.Kind); t != nil {
		own.body = mergerules.Name(t)
		e.b.addKind(own.body, Kind{sub.Kind.Group, sub.Kind.Kind, sub.Kind.Version})
		e.b.define(t)
	}
	methods := map[string]string{"get": "get", "update": "put", "patch": "patch", "create": "post"}
	one := object{"parameters": own.pathParameters(true)}
	for _, verb := range sub.Verbs {
		if m := methods[verb]; m != "" {
			action := m
			switch sub.Name {
			case "exec", "attach", "portforward", "proxy":
				action = "connect"
			}
			one[m] = own.operation(verb, action, "")
		}
	}
	if len(one) > 1 {
		out[base+"/{name}/"+sub.Name] = one
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
		out[root+"/watch/"+e.res.GVR().Resource] = object{"get": all.operation("watchlist", "watchlist", kind+"ListForAllNamespaces"), "parameters": e.b.parameters("pretty")}
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

// versionPath is where a group version's resources are told.
func (b *builder) versionPath(out object, gv schema.GroupVersion) {
	tag := tagOf(gv.Group)
	root := "/apis/" + gv.Group + "/" + gv.Version + "/"
	if gv.Group == "" {
		root = "/api/" + gv.Version + "/"
	}
	resources := reflect.TypeFor[metav1.APIResourceList]()
	b.addKind(mergerules.Name(resources), Kind{"", "APIResourceList", "v1"})
	list := b.define(resources)
	op := object{"tags": []string{tag + "_" + gv.Version}, "description": "get available resources", "operationId": "get" + title1(tag) + title1(gv.Version) + "APIResources"}
	if b.v3 {
		op["responses"] = b.responsesV3("get", list, media)
	} else {
		op["responses"], op["schemes"] = b.responsesV2("get", list), []string{"https"}
		op["consumes"], op["produces"] = media, media
	}
	out[root] = object{"get": op}
}

func title1(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
